"""Prepared cases on disk: made once, shared by all runs, read whole or crop by crop.

Every case is a folder that appears in one rename, so two processes may prepare at once, and a
killed one leaves the cases it had finished. Cases are held in memory up to a limit; the others are
read from disk as they are needed, mapped only for the moment, so that memory stays bounded.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autofedavg.errors import DataError
from autofedavg.task import Progress
from autofedavg.tasks.files import digest, identity
from autofedavg.tasks.pipeline import Pipeline
from autofedavg.tasks.places import cache_home
from autofedavg.tasks.preparation import BINARY, Arrays, Case, Classes, arrays

VERSION = 1  # part of every key: raise it whenever the same files and settings give other arrays
CENTRES = 2**16  # voxels kept per class to centre crops on
SPLITS = ("train", "validation", "test", "holdout")
Box = tuple[slice, ...]


class Prepared:
    """A case in the cache, in memory once `hold` was called."""

    def __init__(self, case: str, folder: Path) -> None:
        self.case, self._folder = case, folder
        self.facts: dict[str, Any] = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        self.size: tuple[int, ...] = tuple(self.facts["size"])
        self._held: tuple[Tensor, Tensor] | None = None
        self._centres: list[np.ndarray] | None = None
        self._original: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in memory when held."""
        return int(self.facts["nbytes"])

    @property
    def held(self) -> bool:
        return self._held is not None

    @property
    def low(self) -> float:
        """The smallest intensity: what lies outside the image."""
        return float(self.facts["low"])

    @property
    def affine(self) -> np.ndarray:
        return np.array(self.facts["affine"])

    @property
    def original_affine(self) -> np.ndarray:
        return np.array(self.facts["original_affine"])

    @property
    def moved(self) -> bool:
        """Whether the prepared grid is another one than the file's."""
        return bool(self.facts["moved"])

    def hold(self) -> None:
        """Keeps the arrays in memory from now on."""
        image, label = (np.load(self._folder / f"{name}.npy") for name in ("image", "label"))
        self._held = torch.from_numpy(image), torch.from_numpy(label)
        self._original = self.original()
        self._centres = self.centres()

    def settle(self, device: torch.device) -> None:
        """Moves what is held to a device."""
        if self._held is not None:
            image, label = self._held
            self._held = image.to(device), label.to(device)

    def crop(self, box: Box) -> tuple[Tensor, Tensor]:
        """Image (C, *box) float32 and label (1, *box) uint8 of a part."""
        if self._held is not None:
            image, label = self._held
            return image[(slice(None), *box)].float(), label[box][None]
        image, label = self._mapped("image"), self._mapped("label")
        return (
            torch.from_numpy(image[(slice(None), *box)].astype(np.float32)),
            torch.from_numpy(np.array(label[box]))[None],
        )

    def image(self) -> Tensor:
        """The whole image, (C, *size) float32."""
        return self.crop((slice(None),) * len(self.size))[0]

    def is_background(self, voxel: tuple[int, ...]) -> bool:
        label = self._held[1] if self._held is not None else self._mapped("label")
        return int(label[voxel]) == 0

    def centres(self) -> list[np.ndarray]:
        """For every class, the flat indices of (some of) its voxels."""
        if self._centres is not None:
            return self._centres
        with np.load(self._folder / "centres.npz") as found:
            return [found[str(k)] for k in range(len(found.files))]

    def original(self) -> Tensor:
        """The label on the grid of the file, uint8."""
        if self._original is not None:
            return self._original
        if not self.moved:
            return torch.from_numpy(np.load(self._folder / "label.npy"))
        with np.load(self._folder / "original.npz") as found:
            return torch.from_numpy(found["label"])

    def _mapped(self, name: str) -> Any:
        return np.load(self._folder / f"{name}.npy", mmap_mode="r")


class Store:
    """The folder of prepared cases of one pipeline and class list.

    Args:
        how: the pipeline; only its deterministic part matters.
        classes: the class list.
        cache: the folder for caches; the user's when empty.
        memory: GiB of prepared cases to hold.
    """

    def __init__(
        self, how: Pipeline, classes: Classes = BINARY, cache: str = "", memory: float = 8.0
    ) -> None:
        self._how, self._classes = how, classes
        self._folder = (Path(cache) if cache else cache_home()) / "prepared"
        self._limit = memory * 2**30

    def has(self, case: Case) -> bool:
        """Whether a case has been prepared; its files must exist."""
        return _whole(self._place(case))

    def prepare(self, case: Case) -> Prepared:
        """The prepared case, made now if it has not been made.

        Raises:
            DataError: its files cannot be used.
        """
        place = self._place(case)
        if not _whole(place):
            self._make(case, place)
        return Prepared(case.case, place)

    def sites(
        self, wanted: Mapping[str, Sequence[Case]], progress: Progress | None = None
    ) -> dict[str, dict[str, list[Prepared]]]:
        """Every site's cases by split, prepared, and held in memory as far as the limit goes.

        Raises:
            DataError: a site lacks a split, or cases cannot be used; all are listed.
        """
        self._check_splits(wanted)
        self._sweep()
        jobs = [(site, case) for site, cases in wanted.items() for case in cases]
        ready: dict[str, dict[str, list[Prepared]]] = {
            site: {split: [] for split in SPLITS} for site in wanted
        }
        wrong: list[str] = []
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            futures = [pool.submit(self._tried, case) for _, case in jobs]
            try:
                for done, ((site, case), future) in enumerate(zip(jobs, futures, strict=True), 1):
                    result = future.result()
                    if isinstance(result, DataError):
                        wrong.append(f"{site}, {case.case}: {result}")
                    else:
                        ready[site][case.split].append(result)
                    if progress:
                        progress("preparing cases", done, len(jobs))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if wrong:
            raise DataError(
                f"{len(wrong)} of {len(jobs)} cases cannot be used:\n  " + "\n  ".join(wrong),
                remedy="mend them, or take them out",
            )
        refuse_copies(ready)
        self._hold(ready)
        return ready

    def _tried(self, case: Case) -> Prepared | DataError:
        try:
            return self.prepare(case)
        except DataError as error:
            return error

    def _hold(self, ready: Mapping[str, Mapping[str, Sequence[Prepared]]]) -> None:
        """Training cases first: they are read most often."""
        left = self._limit
        for split in SPLITS:
            for parts in ready.values():
                for case in parts[split]:
                    if case.nbytes <= left:
                        left -= case.nbytes
                        case.hold()

    def _check_splits(self, wanted: Mapping[str, Sequence[Case]]) -> None:
        lacking = [
            f"{site} has no {split} case"
            for site, cases in wanted.items()
            for split in SPLITS[:3]
            if not any(case.split == split for case in cases)
        ]
        if lacking:
            raise DataError(
                "; ".join(lacking),
                where="splits",
                remedy="give every site at least one case of each split, or leave the site out",
            )

    def _place(self, case: Case) -> Path:
        about = {
            "version": VERSION,
            "chain": self._how.chain(),
            "axes": self._how.axes,
            "classes": {name: list(values) for name, values in self._classes.items()},
            "image": [[str(path.absolute()), identity(path)] for path in case.image],
            "label": [str(case.label.absolute()), identity(case.label)],
        }
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        return self._folder / key[:2] / key[2:26]

    def _make(self, case: Case, place: Path) -> None:
        made = arrays(case, self._how, self._classes)
        name = f".{place.name}-{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
        making = place.with_name(name)
        with _disk(self._folder):
            try:
                making.mkdir(parents=True)
                _write(making, made, case, len(self._classes))
                if place.exists():  # left unfinished by a power cut, or by an older version
                    shutil.rmtree(place, ignore_errors=True)
                making.rename(place)
            except OSError:
                if not _whole(place):  # not just another process that was faster
                    raise
            finally:
                shutil.rmtree(making, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes what processes of this machine that are gone have left half made."""
        mark = f"-{socket.gethostname()}-"
        for left in self._folder.glob(f"*/.*{mark}*"):
            process = left.name.rpartition(mark)[2].partition("-")[0]
            if process.isdigit() and not Path(f"/proc/{process}").exists():
                shutil.rmtree(left, ignore_errors=True)


def refuse_copies(ready: Mapping[str, Mapping[str, Sequence[Prepared]]]) -> None:
    """Refuses one and the same image in two splits or at two sites: the test would leak.

    Raises:
        DataError: lists every such pair.
    """
    seen: dict[str, tuple[str, str, str]] = {}
    twice = []
    for site, parts in ready.items():
        for split, cases in parts.items():
            for case in cases:
                here = (site, split, case.case)
                before = seen.setdefault(case.facts["image_sha256"], here)
                if before[:2] != here[:2]:
                    twice.append(f"{'/'.join(before)} and {'/'.join(here)}")
    if twice:
        raise DataError(
            "the same image stands in two splits or at two sites, so the test would leak:\n  "
            + "\n  ".join(twice),
            remedy="keep one of each pair",
        )


def _write(folder: Path, made: Arrays, case: Case, classes: int) -> None:
    np.save(folder / "image.npy", made.image)
    np.save(folder / "label.npy", made.label)
    if made.original is not None:
        np.savez_compressed(folder / "original.npz", label=made.original)
    draw = np.random.RandomState(0)
    centres: dict[str, Any] = {}
    for number in range(1, classes + 1):
        found = np.flatnonzero(made.label == number)
        if len(found) > CENTRES:
            found = np.sort(draw.choice(found, CENTRES, replace=False))
        centres[str(number - 1)] = found
    np.savez_compressed(folder / "centres.npz", **centres)
    original = made.label if made.original is None else made.original
    kept = sum(found.nbytes for found in centres.values())
    facts = {
        "size": list(made.label.shape),
        "low": float(made.image.min()),
        "nbytes": made.image.nbytes + made.label.nbytes + original.nbytes + kept,
        "moved": made.original is not None,
        "affine": made.affine.tolist(),
        "original_affine": made.original_affine.tolist(),
        "image_sha256": digest(case.image),
        "label_sha256": digest([case.label]),
        "files": {f.name: f.stat().st_size for f in sorted(folder.iterdir())},
    }
    (folder / "case.json").write_text(json.dumps(facts), encoding="utf-8")


def _whole(place: Path) -> bool:
    """Whether a prepared case is there with all its bytes."""
    with suppress(OSError, ValueError, KeyError):
        facts = json.loads((place / "case.json").read_text(encoding="utf-8"))
        return all((place / f).stat().st_size == size for f, size in facts["files"].items())
    return False


@contextmanager
def _disk(folder: Path) -> Any:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"prepared cases cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="make room there, or set task.cache or AUTOFEDAVG_CACHE",
        ) from error
