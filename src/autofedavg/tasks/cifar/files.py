"""CIFAR-10 as the University of Toronto publishes it: the binary and the python layout.

One error lists all problems of the six files. A batch may hold any number of images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autofedavg.core.errors import DataError
from autofedavg.tasks.base import Progress
from autofedavg.tasks.cifar import inert_pickle

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
ARCHIVES = {"binary": "cifar-10-binary.tar.gz", "python": "cifar-10-python.tar.gz"}
FOLDERS = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
BATCHES = (*TRAIN, "test_batch")
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
OFFICIAL_RECORDS = 10_000
OFFICIAL_MD5 = {  # of the official binary files
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}

Layout = Literal["binary", "python"]


@dataclass(frozen=True)
class CifarFolder:
    """A folder with files of one layout."""

    folder: Path
    layout: Layout

    def file(self, batch: str) -> Path:
        return self.folder / (f"{batch}.bin" if self.layout == "binary" else batch)

    def missing(self) -> list[str]:
        return [batch for batch in BATCHES if not self.file(batch).is_file()]


@dataclass(frozen=True)
class LabelledImages:
    """Images (N, 3, 32, 32) and labels (N,), both unsigned bytes, in the official order."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Cifar10Data:
    """The content of the six files."""

    found: CifarFolder  # their folder
    train: LabelledImages  # the five training batches, in order
    test: LabelledImages  # the test batch
    md5: dict[str, str]  # batch -> MD5 of its records in the binary layout

    def official(self) -> dict[str, bool]:
        """Batch -> whether images, labels and their order are the official ones."""
        return {batch: digest == OFFICIAL_MD5[batch] for batch, digest in self.md5.items()}


def find(root: Path) -> CifarFolder | None:
    """The layout at `root`, or in the archive's folder below it; None if there is none.

    Of several layouts, the one with the most files; the binary one in a tie.
    """
    layouts: tuple[Layout, ...] = ("binary", "python")
    places = [CifarFolder(at, kind) for kind in layouts for at in (root, root / FOLDERS[kind])]
    try:
        missing = [len(place.missing()) for place in places]
    except OSError as error:
        raise DataError(
            f"the folder cannot be read ({error.strerror})",
            where=str(root),
            remedy="allow this user to read it, or set task.root to another folder",
        ) from error
    fewest = min(missing)
    return places[missing.index(fewest)] if fewest < len(BATCHES) else None


def read(root: Path, progress: Progress | None = None) -> Cifar10Data:
    """Reads and checks all six batches; raises a DataError that lists every unusable file."""
    found = find(root)
    if found is None:
        raise DataError("no CIFAR-10 files found", where=str(root), remedy=remedy(root))
    wrong, batches = [], {}
    for done, batch in enumerate(BATCHES, 1):
        path = found.file(batch)
        try:
            batches[batch] = _read_batch(path, found.layout)
        except DataError as error:
            wrong.append(f"{path.name}: {error.what}")
        if progress:
            progress("reading CIFAR-10", done, len(BATCHES))
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(BATCHES)} files cannot be used:\n  " + "\n  ".join(wrong),
            where=str(found.folder),
            remedy=remedy(root),
        )
    return Cifar10Data(
        found,
        _joined([batches[batch] for batch in TRAIN]),
        _joined([batches["test_batch"]]),
        {batch: _md5(records) for batch, records in batches.items()},
    )


def remedy(root: Path) -> str:
    """The remedy for missing or damaged files."""
    return f"download {ARCHIVES['binary']} from {PAGE} and unpack it in {root}"


def _read_batch(path: Path, layout: Layout) -> np.ndarray:
    """The (N, 3073) records of a file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError("it is missing") from None
    except OSError as error:
        raise DataError(f"it cannot be read ({error.strerror})") from error
    labels, pixels = _from_binary(content) if layout == "binary" else _from_pickle(content)
    if not labels:
        raise DataError("it holds no image")
    for at, label in enumerate(labels):
        if not 0 <= label < len(CLASSES):
            raise DataError(f"the label of image {at} is {label}, expected 0 to 9")
    return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], axis=1)


def _from_binary(content: bytes) -> tuple[list[int], np.ndarray]:
    if len(content) % RECORD:
        raise DataError(
            f"its {len(content)} bytes are not a multiple of {RECORD}, the size of an image "
            f"(the official file has {OFFICIAL_RECORDS * RECORD})"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    return records[:, 0].tolist(), records[:, 1:]


def _from_pickle(content: bytes) -> tuple[list[int], np.ndarray]:
    loaded = inert_pickle.load(content)
    if not isinstance(loaded, dict):
        raise DataError("it does not hold a table of images and labels")
    table: dict[Any, Any] = {
        key.decode("latin-1") if isinstance(key, bytes) else key: value
        for key, value in loaded.items()
    }
    pixels = inert_pickle.array_of_bytes(table.get("data"), PIXELS)
    labels = table.get("labels")
    if not (isinstance(labels, list) and all(type(label) is int for label in labels)):
        raise DataError("it does not hold a list of labels")
    if len(labels) != len(pixels):
        raise DataError(f"it has {len(pixels)} images and {len(labels)} labels")
    return labels, pixels


def _joined(batches: Sequence[np.ndarray]) -> LabelledImages:
    records = np.concatenate(batches)
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32)
    return LabelledImages(images, np.ascontiguousarray(records[:, 0]))


def _md5(records: np.ndarray) -> str:
    return hashlib.md5(records.tobytes(), usedforsecurity=False).hexdigest()
