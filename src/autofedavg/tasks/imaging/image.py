"""The deterministic steps from an image file to the network's input, with their checks.

read -> RAS -> common spacing -> crop to the body -> normalise. A label takes the same steps as a
further layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.files import offset
from autofedavg.tasks.imaging.intensities import normalised
from autofedavg.tasks.imaging.monai_import import importing_monai
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.readers import Scan

with importing_monai():
    from monai.data import MetaTensor
    from monai.transforms import Orientation, Spacing

Box = tuple[slice, ...]
AXES = "RAS"  # orientation of prepared volumes


@dataclass(frozen=True)
class PreparedImage:
    """An image after its deterministic steps."""

    image: np.ndarray  # (C, *size) float16
    affine: np.ndarray  # (4, 4) of the prepared grid; voxels are the unit where space is unknown
    original_affine: np.ndarray  # (4, 4) of the file's grid
    original_size: tuple[int, ...]  # voxels along each axis of that grid
    moved: bool  # whether the prepared grid differs from the file's

    @property
    def size(self) -> tuple[int, ...]:
        return self.image.shape[1:]

    @property
    def low(self) -> list[float]:
        """Every channel's smallest intensity: what lies outside the image."""
        return [float(channel.min()) for channel in self.image]

    def part(self, box: Box) -> Tensor:
        """(C, *box) float32 of a box that may reach beyond the image."""
        inner = within(box, self.size)
        part = torch.from_numpy(self.image[:, *inner].astype(np.float32))
        return surrounded(part, inner, box, self.low)


def refuse_unusable(image: Scan, named: str) -> None:
    """Raises DataError if voxels are not finite, or all voxels of a channel are equal."""
    if not np.isfinite(image.values).all():
        raise DataError(
            "it holds numbers that are not finite", where=named, remedy="export the image again"
        )
    flat = [k for k, channel in enumerate(image.values) if channel.min() == channel.max()]
    if flat:
        which = f"channel {flat[0]} has" if len(image.values) > 1 else "it has"
        raise DataError(
            f"{which} the same value everywhere",
            where=named,
            remedy="export the image again, or remove the case",
        )


def refuse_misfit(image: Scan, how: Pipeline, named: str) -> None:
    """Raises DataError if an image does not fit the pipeline."""
    if len(image.grid) != how.axes:
        raise DataError(
            f"it has {len(image.grid)} axes, the pipeline's roi {how.axes}",
            where=named,
            remedy="give task.pipeline.roi as many sizes as the images have axes",
        )
    if how.spacing != "keep" and image.spacing is None:
        raise DataError(
            "its voxel spacing is unknown, so it cannot be resampled",
            where=named,
            remedy="set task.pipeline.spacing = 'keep', or write the spacing into the file",
        )


def prepare_layers(
    layers: list[np.ndarray], affine: np.ndarray | None, how: Pipeline, named: str
) -> tuple[PreparedImage, list[np.ndarray]]:
    """All deterministic steps for an image and its label.

    Args:
        layers: the image, (C, *grid) float32, and its label, (1, *grid), if there is one. The list
            is consumed: a CT is large, and more than one may be prepared at once.
        affine: (4, 4) from voxel to mm, where it is known.
        how: the pipeline.
        named: the image's name in errors.

    Returns:
        The image, and the other layers, (*size,) uint8.
    """
    grid = layers[0].shape[1:]
    before = after = np.eye(4) if affine is None else affine
    if affine is not None:
        for number in reversed(range(len(layers))):
            mode: Literal["bilinear", "nearest"] = "nearest" if number else "bilinear"
            layers[number], after = _regrid(layers[number], affine, how, mode)
    if how.crop:
        box = _body(layers[0], how)
        layers[:] = [layer[:, *box] for layer in layers]
        after = after.copy()
        after[:3, 3] += after[:3, :3] @ np.array([float(part.start or 0) for part in box])
    values = layers.pop(0)
    _refuse_vanished(values, grid, named)
    still = how.axes == 2 or offset(before, after, grid) < 1e-6
    moved = not (still and values.shape[1:] == grid)
    image = PreparedImage(normalised(values, how), after, before, grid, moved)
    return image, [np.ascontiguousarray(layer[0], np.uint8) for layer in layers]


def within(box: Box, size: Sequence[int]) -> Box:
    """The part of a box that lies in an image of this size."""
    return tuple(
        slice(max(0, part.start), min(n, part.stop)) for part, n in zip(box, size, strict=True)
    )


def surrounded(part: Tensor, inner: Box, box: Box, low: Sequence[float]) -> Tensor:
    """Pads a part (C, *inner) to a larger box, (C, *box), with every channel's `low`."""
    if inner == box:
        return part
    shape = [whole.stop - whole.start for whole in box]
    place = tuple(
        slice(kept.start - whole.start, kept.stop - whole.start)
        for kept, whole in zip(inner, box, strict=True)
    )
    made = part.new_tensor(low).reshape(-1, *(1,) * len(shape)).expand(-1, *shape).clone()
    made[:, *place] = part
    return made


def _refuse_vanished(values: np.ndarray, grid: Sequence[int], named: str) -> None:
    small = values.shape[1:]
    if any(now < 3 <= 8 <= was for now, was in zip(sorted(small), sorted(grid), strict=True)):
        raise DataError(
            f"its grid of {size_text(grid)} becomes {size_text(small)}",
            where=named,
            remedy="check the spacing in its header; in a study, lower task.pipeline.spacing",
        )
    if any(channel.min() == channel.max() for channel in values):
        raise DataError(
            "it has the same value everywhere after resampling and cropping",
            where=named,
            remedy="check the image; in a study, change task.pipeline.spacing",
        )


def _regrid(
    layer: np.ndarray, affine: np.ndarray, how: Pipeline, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """Turns the axes to RAS, then resamples to the common spacing."""
    tensor = MetaTensor(torch.from_numpy(layer), affine=torch.from_numpy(affine))
    tensor = Orientation(axcodes=AXES, labels=None)(tensor)
    if how.spacing != "keep":
        tensor = Spacing(pixdim=how.spacing, mode=mode, dtype=torch.float32)(tensor)
    return tensor.as_tensor().numpy(), tensor.affine.numpy().astype(np.float64)


def _body(values: np.ndarray, how: Pipeline) -> Box:
    """The smallest box with everything above the window, or other than zero."""
    above = values > how.window[0] if how.normalise == "window" else values != 0.0
    full = np.asarray(above.any(axis=0))
    box = []
    for axis in range(full.ndim):
        found = np.flatnonzero(full.any(axis=tuple(a for a in range(full.ndim) if a != axis)))
        box.append(slice(found[0], found[-1] + 1) if len(found) else slice(None))
    return tuple(box)


def size_text(sizes: Sequence[int]) -> str:
    """A grid's size, as in "512 x 512 x 70"."""
    return " x ".join(map(str, sizes))
