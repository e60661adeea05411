"""A case, an image with its label, from files to arrays; with checks that the two fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from nibabel.orientations import apply_orientation, io_orientation

from autofedavg.core.errors import DataError
from autofedavg.tasks.base import Progress
from autofedavg.tasks.imaging.files import ROUNDING, digest, offset, read, read_label
from autofedavg.tasks.imaging.image import (
    PreparedImage,
    prepare_layers,
    refuse_misfit,
    refuse_unusable,
    size_text,
)
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.readers import Scan

Classes = Mapping[str, tuple[int, ...]]
BINARY: Classes = {"foreground": (1,)}
Result = TypeVar("Result")
BACKGROUND = ""  # class name of label values that count as background: other structures


class Case(NamedTuple):
    """One image and its label, as files."""

    case: str  # its name, unique at its site
    split: str  # train, validation, test or holdout
    image: tuple[Path, ...]  # one file (or DICOM folder) per group of channels
    label: Path  # the file with the classes
    patient: str = ""  # the patient's id; the case itself when empty
    # The meaning of this label's values, in place of the task's class list.
    classes: Classes | None = None
    # Whether the label's array is in the order of the image's DICOM slices: columns, rows, slices
    # from the head down. Its affine is then ignored.
    by_rows: bool = False


@dataclass(frozen=True)
class CaseArrays(PreparedImage):
    """A case after its deterministic steps: its image, and its label."""

    label: np.ndarray  # (*size,) uint8, 0 for background and 1.. in the order of the classes
    original: np.ndarray | None  # the label on its own grid; None when that is the prepared grid
    digests: tuple[str, str]  # of the numbers in the files, image and label


def of_every_case(
    wanted: Mapping[str, Sequence[Case]],
    work: Callable[[Case], Result | DataError],
    what: str,
    threads: int,
    progress: Progress | None = None,
    where: str = "",
) -> dict[str, list[Result]]:
    """The results of `work` for the cases of every site; raises a DataError that lists all errors.

    An error that `work` raises, instead of returning it, ends the work at once.
    """
    jobs = [(site, case) for site, cases in wanted.items() for case in cases]
    found: dict[str, list[Result]] = {site: [] for site in wanted}
    wrong: list[str] = []
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, case) for _, case in jobs]
        try:
            for done, ((site, case), future) in enumerate(zip(jobs, futures, strict=True), 1):
                result = future.result()
                if isinstance(result, DataError):
                    wrong.append(f"{site}, {case.case}: {result}")
                else:
                    found[site].append(result)
                if progress:
                    progress(what, done, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(jobs)} cases cannot be used:\n  " + "\n  ".join(wrong),
            where=where,
            remedy="correct them, or remove them from the list of cases",
        )
    return found


def load(case: Case, classes: Classes) -> tuple[Scan, np.ndarray]:
    """Reads and checks image and label; the label's values become 1.. in the classes' order."""
    image, label = read(case.image), read_label(case.label)
    if case.by_rows:
        label = _by_rows(label, image)
    classes = case.classes or classes
    if image.grid != label.grid:
        raise DataError(
            f"its grid is {size_text(label.grid)}, the image's {size_text(image.grid)}",
            where=str(case.label),
            remedy="use the label that was drawn on this image",
        )
    apart = offset(image.affine, label.affine, image.grid)
    if image.affine is None:
        apart = offset(image.lies, label.lies, (*reversed(image.grid), 1))
    if apart > ROUNDING:
        raise DataError(
            f"it lies {apart:.2g} voxels away from its image",
            where=str(case.label),
            remedy="resample the label to its image's grid, or correct the wrong affine",
        )
    refuse_unusable(image, str(case.image[0]))
    return image, _numbered(label.values[0], classes, case.label)


def arrays(case: Case, how: Pipeline, classes: Classes) -> CaseArrays:
    """All deterministic steps; raises DataError if the case cannot be used."""
    scan, label = load(case, classes)
    named = str(case.image[0])
    refuse_misfit(scan, how, named)
    digests = digest(upright(scan.values, scan.affine)), digest(upright(label[None], scan.affine))
    layers, affine = [scan.values.astype(np.float32), label[None]], scan.affine
    del scan  # a CT is large, and more than one may be prepared at once
    image, (small,) = prepare_layers(layers, affine, how, named)
    original = label if image.moved else None
    return CaseArrays(**vars(image), label=small, original=original, digests=digests)


def upright(values: np.ndarray, affine: np.ndarray | None) -> np.ndarray:
    """(C, ...) with its axes turned to RAS; no voxel is changed."""
    if affine is None or values.ndim != 4:
        return values
    turned = apply_orientation(np.moveaxis(values, 0, -1), io_orientation(affine))
    return np.moveaxis(turned, -1, 0)


def _by_rows(label: Scan, image: Scan) -> Scan:
    """The label on its image's grid; slices run from the head down in its array."""
    upwards = image.affine is not None and image.affine[2, 2] > 0
    values = label.values[..., ::-1] if upwards else label.values
    return Scan(values, image.affine)


def _numbered(label: np.ndarray, classes: Classes, path: Path) -> np.ndarray:
    """Values of the file -> 0, 1, .. as the classes are listed."""
    named = [values for name, values in classes.items() if name != BACKGROUND]
    number = {value: k for k, values in enumerate(named, 1) for value in values}
    number |= dict.fromkeys(classes.get(BACKGROUND, ()), 0)
    found = np.unique(label)
    strange = [int(value) for value in found if value != 0 and int(value) not in number]
    if strange:
        listed = ", ".join(f"{n or 'background'} {list(v)}" for n, v in classes.items())
        raise DataError(
            f"it holds {few(strange)}, which the class list does not have (0 is background; "
            f"{listed})",
            where=str(path),
            remedy="correct the label, or add the values to task.classes",
        )
    numbered = np.zeros(label.shape, np.uint8)
    for value in found:
        if number.get(int(value)):
            numbered[label == value] = number[int(value)]
    return numbered


def few(values: Sequence[int]) -> str:
    """The first five values of a list, for an error."""
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
