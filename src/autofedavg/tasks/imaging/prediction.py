"""A network's classes on the file's own grid, and their Dice scores.

Everything runs in slabs along the first axis, so that a large CT takes little memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from autofedavg.tasks.imaging.casefolder import PreparedCase
from autofedavg.tasks.imaging.image import Box, PreparedImage
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.window import pieces, slabs

with warnings.catch_warnings():
    # MONAI warns of optional packages while it is imported.
    warnings.simplefilter("ignore")
    from monai.data import MetaTensor
    from monai.transforms import SpatialResample

_resample = SpatialResample(
    mode="bilinear", padding_mode="border", align_corners=False, dtype=torch.float32
)
OnGrid = PreparedImage | PreparedCase


def predict(network: nn.Module, case: OnGrid, how: Pipeline, classes: int) -> Tensor:
    """The predicted class of every voxel of the file's own grid, uint8: 0 for background."""
    size = tuple(max(pair) for pair in zip(case.size, how.roi, strict=True))
    before = tuple((whole - n) // 2 for whole, n in zip(size, case.size, strict=True))
    parts = slabs(network, partial(_part, case, before), size, how.roi, how.overlap)
    if not case.moved:
        found = torch.empty(case.size, dtype=torch.uint8)
        for rows, part in _inside(parts, case.size, before):
            found[rows] = part.argmax(dim=0).to(torch.uint8).cpu()
        return found
    chance = torch.empty((classes, *case.size))
    for rows, part in _inside(parts, case.size, before):
        chance[:, rows] = torch.softmax(part, dim=0)[1:].cpu()
    return _back(chance, case, how)


def dices(found: Tensor, label: Tensor, classes: int) -> list[float]:
    """Dice of every class; two empty masks agree fully, one empty mask not at all (decision 9)."""
    both, either = [0] * classes, [0] * classes
    for rows in pieces(label.shape):
        one, two = found[rows], label[rows]
        for k in range(classes):
            mine, theirs = one == k + 1, two == k + 1
            both[k] += int((mine & theirs).sum())
            either[k] += int(mine.sum()) + int(theirs.sum())
    return [2 * b / e if e else 1.0 for b, e in zip(both, either, strict=True)]


def _part(case: OnGrid, before: Sequence[int], box: Box) -> Tensor:
    """The part of an image in a window's box; the image begins at voxel `before` of the grid."""
    place = zip(box, before, strict=True)
    return case.part(tuple(slice(b.start - n, b.stop - n) for b, n in place))


def _inside(
    parts: Iterator[tuple[int, Tensor]], size: Sequence[int], before: Sequence[int]
) -> Iterator[tuple[slice, Tensor]]:
    """Slabs without the padding, with the rows of the image that they cover."""
    rest = tuple(slice(b, b + n) for b, n in zip(before[1:], size[1:], strict=True))
    for first, part in parts:
        start = max(first - before[0], 0)
        stop = min(first - before[0] + part.shape[1], size[0])
        if start < stop:
            skipped = start - (first - before[0])
            rows = slice(skipped, skipped + stop - start)
            yield slice(start, stop), part[:, rows, *rest]


def _back(chance: Tensor, case: OnGrid, how: Pipeline) -> Tensor:
    """Foreground probabilities on the prepared grid -> classes on the file's own.

    Interpolation keeps the sum over the classes, so background is the remainder to one.
    """
    affine, goal = case.affine.copy(), case.original_affine
    if how.crop:  # what was cut away is background
        chance = pad(chance, (1, 1) * 3)
        affine[:3, 3] -= affine[:3, :3].sum(axis=1)
    source = MetaTensor(chance, affine=torch.from_numpy(affine))
    found = torch.empty(case.original_size, dtype=torch.uint8)
    for rows in pieces(case.original_size):
        shifted = goal.copy()
        shifted[:3, 3] += rows.start * goal[:3, 0]
        part = _resample(
            source,
            dst_affine=torch.from_numpy(shifted),
            spatial_size=(rows.stop - rows.start, *case.original_size[1:]),
        ).as_tensor()
        every = torch.cat([1 - part.sum(dim=0, keepdim=True), part])
        found[rows] = every.argmax(dim=0).to(torch.uint8)
    return found
