"""A folder of predictions: one model's, each listed with what it was made from.

What `predictions.json` lists is there and whole: a file gets its name only once it is listed, so a
call that was stopped at any moment goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.experiment.folder_writer import Busy, RunFolder, write_atomically

SCHEMA = 1
LIST = "predictions.json"
EVERY = 2.0  # seconds between two writings of the list, which grows with every case
TOLD = 5  # files named in an error


@dataclass(frozen=True)
class Prediction:
    """One image's prediction.

    Attributes:
        case: its name.
        image: the files it was made from, one or several that are channels.
        file: its file in the folder of predictions.
        voxels: of every class.
        ml: their volume in millilitres; None where the size of a voxel is not known.
        files_sha256: of the names, sizes and times of change of the image's files.
        device: where it was computed.
        version: of this package.
    """

    case: str
    image: tuple[str, ...]
    file: str
    voxels: Mapping[str, int]
    ml: Mapping[str, float] | None
    files_sha256: str
    device: str
    version: str


@dataclass(frozen=True)
class Wanted:
    """An image, and where its prediction is to go; as in `Prediction`."""

    case: str
    image: tuple[Path, ...]
    file: str
    files_sha256: str

    def is_of(self, made: Prediction) -> bool:
        """Whether a prediction is of this image as it is now."""
        return (tuple(map(str, self.image)), self.file, self.files_sha256) == (
            made.image,
            made.file,
            made.files_sha256,
        )


class PredictionFolder:
    """The predictions of one model.

    Args:
        path: the folder; made if need be.
        model: what is known of the model; its "sha256" tells models apart.
        classes: class name -> number in the files.
    """

    def __init__(self, path: Path, model: Mapping[str, Any], classes: Mapping[str, int]) -> None:
        self.path, self._model, self._classes = path, dict(model), dict(classes)
        self._made: dict[str, Prediction] = {}
        self._waiting: list[tuple[Path, Path]] = []
        self._listed = 0.0

    @contextmanager
    def opened(self, wanted: Sequence[Wanted], *, overwrite: bool) -> Iterator[list[Wanted]]:
        """Holds the folder; gives what is still to be predicted; lists in the end what was.

        Raises:
            RunError: files exist that are not to be overwritten, or it cannot be written.
        """
        with ExitStack() as stack:
            with _writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_alone(self.path))
            self._made = self._replaced(wanted) if overwrite else self._kept(wanted)
            self._commit()
            try:
                yield [case for case in wanted if case.file not in self._made]
            finally:
                self._commit()

    def add(self, made: Prediction, content: bytes) -> None:
        """Writes a prediction."""
        final = self.path / made.file
        part = final.with_name(f"{final.name}.part")
        with _writing(self.path):
            part.unlink(missing_ok=True)  # of a call that was killed; or a link
            with part.open("xb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
        self._made[made.file] = made
        self._waiting.append((part, final))
        if time.monotonic() - self._listed > EVERY:
            self._commit()

    def of(self, wanted: Sequence[Wanted]) -> list[Prediction]:
        """The predictions of images, as far as they are there."""
        return [self._made[case.file] for case in wanted if case.file in self._made]

    def _commit(self) -> None:
        content = {
            "schema": SCHEMA,
            "model": self._model,
            "classes": self._classes,
            "cases": [asdict(made) for made in self._made.values()],
        }
        with _writing(self.path):
            write_atomically(self.path / LIST, json.dumps(content, indent=1).encode() + b"\n")
            for part, final in self._waiting:
                part.replace(final)
        self._waiting.clear()
        self._listed = time.monotonic()

    def _kept(self, wanted: Sequence[Wanted]) -> dict[str, Prediction]:
        """What was predicted before and is whole; refuses whatever else is in the way."""
        model, before = self._read()
        if before and model != self._model["sha256"]:
            raise RunError(
                f"it holds predictions of another model ({_few(before)})",
                where=str(self.path),
                remedy="write elsewhere with --out, or replace them with --overwrite",
            )
        there = {file: made for file, made in before.items() if (self.path / file).exists()}
        in_the_way = [
            case.file
            for case in wanted
            if (self.path / case.file).exists()
            and not (case.file in there and case.is_of(there[case.file]))
        ]
        if in_the_way:
            raise RunError(
                f"predictions exist already, of other images or not listed ({_few(in_the_way)})",
                where=str(self.path),
                remedy="write elsewhere with --out, or replace them with --overwrite",
            )
        return there

    def _replaced(self, wanted: Sequence[Wanted]) -> dict[str, Prediction]:
        """What stays of what was predicted before; what is to be made anew is removed first."""
        model, before = self._read()
        anew = {case.file for case in wanted}
        stays = {
            file: made
            for file, made in before.items()
            if file not in anew and (self.path / file).exists()
        }
        if stays and model != self._model["sha256"]:
            raise RunError(
                "it holds predictions of another model for images that are not named now "
                f"({_few(stays)})",
                where=str(self.path),
                remedy="write elsewhere with --out, or name those images too",
            )
        with _writing(self.path):
            for file in anew:
                (self.path / file).unlink(missing_ok=True)
        return stays

    def _read(self) -> tuple[str, dict[str, Prediction]]:
        """The list as it stands: the model's hash, and file -> prediction."""
        path = self.path / LIST
        if not path.exists():
            return "", {}
        try:
            content = json.loads(path.read_bytes())
            made = [Prediction(**{**c, "image": tuple(c["image"])}) for c in content["cases"]]
            return str(content["model"]["sha256"]), {one.file: one for one in made}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"cannot be read ({error})",
                where=str(path),
                remedy="write elsewhere with --out, or remove the folder",
            ) from error


def _few(files: Mapping[str, Any] | Sequence[str]) -> str:
    listed = list(files)
    more = f", and {len(listed) - TOLD} more" if len(listed) > TOLD else ""
    return ", ".join(listed[:TOLD]) + more


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(RunFolder(folder).lock())
        except Busy as error:
            raise RunError(
                "another process is writing predictions here",
                where=str(folder),
                remedy="wait for it, or write elsewhere with --out",
            ) from error
        yield


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"predictions cannot be written: {error.strerror or error}",
            where=str(error.filename or folder),
            remedy="make it writable or make room there; the same command then goes on",
        ) from error
