"""One case from its files to arrays: the deterministic steps, with their checks.

read -> RAS -> common spacing -> crop to the body -> normalise. No randomness, so it is done once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from nibabel.orientations import apply_orientation, io_orientation

from autofedavg.errors import DataError
from autofedavg.tasks.imaging.files import ROUNDING, Scan, digest, offset, read, read_label
from autofedavg.tasks.imaging.pipeline import Normalise, Pipeline

with warnings.catch_warnings():
    # MONAI warns of optional packages while it is imported.
    warnings.simplefilter("ignore")
    from monai.data import MetaTensor
    from monai.transforms import Orientation, Spacing

Classes = Mapping[str, tuple[int, ...]]
AXES = "RAS"  # what the axes of a volume are turned to
CLIPPED = 5.0  # spreads from the mean
LIMITS: dict[Normalise, tuple[float, float]] = {"window": (0.0, 1.0), "percentiles": (0.0, 1.0),
                                                "zscore": (-CLIPPED, CLIPPED)}  # fmt: skip
PERCENTILES = (0.5, 99.5)
MUCH = 0.02  # of a channel: more than this is not clipped away as air,
FEW = 0.01  # and fewer voxels other than 0 do not stand for it
NARROWEST = 1e-6  # what intensities are divided by at least
STORED = np.float16
BINARY: Classes = {"foreground": (1,)}
BACKGROUND = ""  # as a class name: values that are other structures, and background here


class Case(NamedTuple):
    """One image and its label, as files.

    Attributes:
        case: its name, unique at its site.
        split: train, validation, test or holdout.
        image: one file (or DICOM folder) per group of channels.
        label: the file with the classes.
        patient: whose it is; the case itself when empty.
        classes: what this label's values mean, in place of the task's class list.
        by_rows: whether the label's place is told by its array alone: columns, rows, and slices
            from the head down, as the image's DICOM slices have them. Its affine is not read.
    """

    case: str
    split: str
    image: tuple[Path, ...]
    label: Path
    patient: str = ""
    classes: Classes | None = None
    by_rows: bool = False


@dataclass(frozen=True)
class Arrays:
    """A case after its deterministic steps.

    Attributes:
        image: (C, *size) float16.
        label: (*size,) uint8, 0 for background and 1.. in the order of the classes.
        affine: (4, 4) of the prepared grid; voxels are the unit where space is unknown.
        original: the label on its own grid; None when that is the prepared grid.
        original_affine: (4, 4) of that grid.
        digests: of the numbers in the files, image and label.
    """

    image: np.ndarray
    label: np.ndarray
    affine: np.ndarray
    original: np.ndarray | None
    original_affine: np.ndarray
    digests: tuple[str, str]


def load(case: Case, classes: Classes) -> tuple[Scan, np.ndarray]:
    """Reads and checks image and label; the label's values become 1.. in the classes' order.

    Raises:
        DataError: something is wrong with a file, or the two do not fit.
    """
    image, label = read(case.image), read_label(case.label)
    if case.by_rows:
        label = _by_rows(label, image)
    classes = case.classes or classes
    if image.grid != label.grid:
        raise DataError(
            f"its grid is {_grid(label.grid)}, the image's {_grid(image.grid)}",
            where=str(case.label),
            remedy="name the label that was drawn on this image",
        )
    apart = offset(image.affine, label.affine, image.grid)
    if image.affine is None:
        apart = offset(image.lies, label.lies, (*reversed(image.grid), 1))
    if apart > ROUNDING:
        raise DataError(
            f"it lies elsewhere in space than its image: {apart:.2g} voxels apart",
            where=str(case.label),
            remedy="resample the label to its image's grid, or mend the affine that is wrong",
        )
    named = str(case.image[0])
    if not np.isfinite(image.values).all():
        raise DataError(
            "it holds numbers that are not finite", where=named, remedy="export the image anew"
        )
    flat = [k for k, channel in enumerate(image.values) if channel.min() == channel.max()]
    if flat:
        which = f"channel {flat[0]} has" if len(image.values) > 1 else "it has"
        raise DataError(
            f"{which} one and the same value everywhere",
            where=named,
            remedy="export the image anew, or take the case out",
        )
    return image, _numbered(label.values[0], classes, case.label)


def arrays(case: Case, how: Pipeline, classes: Classes) -> Arrays:
    """All deterministic steps.

    Raises:
        DataError: as `load`, or the image does not fit the pipeline.
    """
    scan, label = load(case, classes)
    if len(scan.grid) != how.axes:
        raise DataError(
            f"it has {len(scan.grid)} axes, the pipeline's roi {how.axes}",
            where=str(case.image[0]),
            remedy="give task.pipeline.roi as many sizes as the images have axes",
        )
    if how.spacing != "keep" and scan.spacing is None:
        raise DataError(
            "its voxel spacing is unknown, so it cannot be resampled",
            where=str(case.image[0]),
            remedy="set task.pipeline.spacing = 'keep', or write the spacing into the file",
        )
    digests = digest(upright(scan.values, scan.affine)), digest(upright(label[None], scan.affine))
    values, small, known = scan.values.astype(np.float32), label, scan.affine is not None
    before = after = scan.affine if scan.affine is not None else np.eye(4)
    del scan  # a CT is large, and more than one may be prepared at once
    if known:
        values, small, after = _regrid(values, label, after, how)
    if how.crop:
        values, small, after = _cropped(values, small, after, how)
    if any(now < 3 <= 8 <= was for now, was in zip(sorted(small.shape), sorted(label.shape),
           strict=True)):  # fmt: skip
        raise DataError(
            f"its grid of {_grid(label.shape)} becomes {_grid(small.shape)}",
            where=str(case.image[0]),
            remedy="use a smaller task.pipeline.spacing",
        )
    if any(channel.min() == channel.max() for channel in values):
        raise DataError(
            "it has one and the same value everywhere once it is resampled and cropped",
            where=str(case.image[0]),
            remedy="look at the image, or change task.pipeline.spacing",
        )
    still = how.axes == 2 or offset(before, after, label.shape) < 1e-6
    return Arrays(
        normalised(values, how),
        np.ascontiguousarray(small),
        after,
        None if still and small.shape == label.shape else label,
        before,
        digests,
    )


def normalised(values: np.ndarray, how: Pipeline) -> np.ndarray:
    """Intensities (C, ...) as the network sees them, channel by channel, float16."""
    made = np.empty(values.shape, STORED)
    least, most = LIMITS[how.normalise]
    for channel, place in zip(values, made, strict=True):
        zero, one = _scale(channel, how)
        scaled = channel - np.float32(zero)
        scaled /= np.float32(max(one - zero, NARROWEST))
        place[...] = np.clip(scaled, least, most, out=scaled)
    return made


def _scale(channel: np.ndarray, how: Pipeline) -> tuple[float, float]:
    """What becomes 0 and what becomes 1."""
    if how.normalise == "window":
        return how.window
    if how.normalise == "zscore":
        mean, spread = moments(channel)
        return mean, mean + spread
    low, high = (float(v) for v in np.percentile(written(channel), PERCENTILES))
    return low, high


def moments(channel: np.ndarray) -> tuple[float, float]:
    """Mean and spread of what is brighter than the average: the body, not the air around it.

    Where much would be clipped that varies more than the body does, it is not air but dark
    structures on a bright ground, and the whole image counts.
    """
    bright = channel[channel > channel.mean(dtype=np.float64)]
    mean, spread = float(bright.mean(dtype=np.float64)), float(bright.std(dtype=np.float64))
    clipped = channel[channel < mean - CLIPPED * spread]
    if clipped.size > MUCH * channel.size and clipped.std(dtype=np.float64) > spread:
        whole = written(channel)
        return float(whole.mean(dtype=np.float64)), float(whole.std(dtype=np.float64))
    return mean, spread


def upright(values: np.ndarray, affine: np.ndarray | None) -> np.ndarray:
    """(C, ...) with its axes nearest to right, anterior, superior: no voxel is changed."""
    if affine is None or values.ndim != 4:
        return values
    turned = apply_orientation(np.moveaxis(values, 0, -1), io_orientation(affine))
    return np.moveaxis(turned, -1, 0)


def written(channel: np.ndarray) -> np.ndarray:
    """The voxels other than 0, which scanners write where they saw nothing; all if 99 % are 0."""
    inside = channel[channel != 0]
    return inside if inside.size > FEW * channel.size else channel.ravel()


def _regrid(
    values: np.ndarray, label: np.ndarray, affine: np.ndarray, how: Pipeline
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Axes nearest to right, anterior, superior; then the common spacing."""
    done = []
    for array, mode in ((values, "bilinear"), (label[None], "nearest")):
        tensor = MetaTensor(torch.from_numpy(array), affine=torch.from_numpy(affine))
        tensor = Orientation(axcodes=AXES, labels=None)(tensor)
        if how.spacing != "keep":
            tensor = Spacing(pixdim=how.spacing, mode=mode, dtype=torch.float32)(tensor)
        done.append(tensor)
    image, small = done
    return (
        image.as_tensor().numpy(),
        small.as_tensor().numpy()[0].astype(np.uint8),
        image.affine.numpy().astype(np.float64),
    )


def _cropped(
    values: np.ndarray, label: np.ndarray, affine: np.ndarray, how: Pipeline
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The smallest box with everything above the window, or other than zero."""
    empty = how.window[0] if how.normalise == "window" else 0.0
    above = values > empty if how.normalise == "window" else values != empty
    full = np.asarray(above.any(axis=0))
    box = []
    for axis in range(full.ndim):
        found = np.flatnonzero(full.any(axis=tuple(a for a in range(full.ndim) if a != axis)))
        box.append(slice(found[0], found[-1] + 1) if len(found) else slice(None))
    moved = affine.copy()
    moved[:3, 3] += affine[:3, :3] @ np.array([float(part.start or 0) for part in box])
    return values[(slice(None), *box)], label[tuple(box)], moved


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
            f"it holds {_few(strange)}, which the class list does not have (0 is background; "
            f"{listed})",
            where=str(path),
            remedy="mend the label, or add the values to task.classes",
        )
    numbered = np.zeros(label.shape, np.uint8)
    for value in found:
        if number.get(int(value)):
            numbered[label == value] = number[int(value)]
    return numbered


def _few(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")


def _grid(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
