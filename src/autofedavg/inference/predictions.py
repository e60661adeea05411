"""A folder of predictions: one model's, each listed with what it was made from.

What `predictions.json` lists is there and whole: a file gets its name only once it is listed, so a
call that was stopped at any moment continues where it stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.experiment.files import naming
from autofedavg.experiment.folder_writer import RunFolder, disk_errors, write_atomically

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

    def is_of(self, made: Prediction | None) -> bool:
        """Whether a prediction is of this image as it is now."""
        mine = (tuple(map(str, self.image)), self.file, self.files_sha256)
        return made is not None and mine == (made.image, made.file, made.files_sha256)


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
            with self._writing():
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(RunFolder(self.path).lock("writing predictions here"))
            self._made = self._earlier(wanted, overwrite)
            self._commit()
            try:
                yield [case for case in wanted if case.file not in self._made]
            finally:
                self._commit()

    def _writing(self) -> AbstractContextManager[None]:
        return disk_errors(self.path, "the same command continues", every=True)

    def add(self, made: Prediction, content: bytes) -> None:
        """Writes a prediction."""
        final = self.path / made.file
        part = final.with_name(f"{final.name}.part")
        with self._writing():
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
        with self._writing():
            write_atomically(self.path / LIST, json.dumps(content, indent=1).encode() + b"\n")
            for part, final in self._waiting:
                part.replace(final)
        self._waiting.clear()
        self._listed = time.monotonic()

    def _earlier(self, wanted: Sequence[Wanted], overwrite: bool) -> dict[str, Prediction]:
        """What was predicted before, and stays; refuses or removes other files of these names."""
        model, before = self._read()
        files = {case.file for case in wanted}
        stays = {file: made for file, made in before.items() if (self.path / file).exists()}
        if overwrite:
            stays = before = {file: made for file, made in stays.items() if file not in files}
        if before and model != self._model["sha256"]:
            which = " for images that are not named now" if overwrite else ""
            instead = "name those images too" if overwrite else "replace them with --overwrite"
            raise RunError(
                f"it holds predictions of another model{which} ({_few(before)})",
                where=str(self.path),
                remedy=f"write elsewhere with --out, or {instead}",
            )
        unknown = [case.file for case in wanted if not case.is_of(stays.get(case.file))]
        there = [file for file in unknown if (self.path / file).exists()]
        if there and not overwrite:
            raise RunError(
                f"predictions exist already, of other images or not listed ({_few(there)})",
                where=str(self.path),
                remedy="write elsewhere with --out, or replace them with --overwrite",
            )
        with self._writing():
            for file in there:
                (self.path / file).unlink()
        return stays

    def _read(self) -> tuple[str, dict[str, Prediction]]:
        """The list as it stands: the model's hash, and file -> prediction."""
        path = self.path / LIST
        if not path.exists():
            return "", {}
        with naming(path, remedy="write elsewhere with --out, or remove the folder"):
            content = json.loads(path.read_bytes())
            made = [Prediction(**{**c, "image": tuple(c["image"])}) for c in content["cases"]]
            return str(content["model"]["sha256"]), {one.file: one for one in made}


def _few(files: Mapping[str, Any] | Sequence[str]) -> str:
    listed = list(files)
    more = f", and {len(listed) - TOLD} more" if len(listed) > TOLD else ""
    return ", ".join(listed[:TOLD]) + more
