"""A network's classes on the file's own grid, and their Dice scores.

Everything runs in slabs along the first axis, so that a large CT takes little memory. Windows,
weights and average are those of MONAI's `SlidingWindowInferer`. That class holds the outputs of the
whole image, gigabytes for a CT; here only one window's depth is held at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from autofedavg.tasks.imaging.casefolder import PreparedCase
from autofedavg.tasks.imaging.image import Box, PreparedImage
from autofedavg.tasks.imaging.monai_import import importing_monai
from autofedavg.tasks.imaging.pipeline import Pipeline

with importing_monai():
    from monai.data import MetaTensor
    from monai.data.utils import compute_importance_map, dense_patch_slices
    from monai.transforms import SpatialResample

_resample = SpatialResample(
    mode="bilinear", padding_mode="border", align_corners=False, dtype=torch.float32
)
OnGrid = PreparedImage | PreparedCase
SIGMA = 0.125  # of a window's size: how fast its weight falls off from its middle
MOST = 8  # windows that go through the network together,
VOXELS = {"cpu": 2**18, "cuda": 2**22}  # and about how many voxels
AT_ONCE = 2**20  # voxels whose outputs are yielded together


def predict(network: nn.Module, case: OnGrid, how: Pipeline, classes: int) -> Tensor:
    """The predicted class of every voxel of the file's own grid, uint8: 0 for background."""
    size = tuple(max(pair) for pair in zip(case.size, how.roi, strict=True))
    before = tuple((whole - n) // 2 for whole, n in zip(size, case.size, strict=True))
    parts = slabs(network, partial(_part, case, before), size, how.roi, how.overlap)
    if not case.moved:
        found = torch.empty(case.size, dtype=torch.uint8)
        for rows, part in _inside(parts, case.size, before):
            found[rows] = _largest(part).cpu()
        return found
    chance = torch.empty((classes, *case.size))
    for rows, part in _inside(parts, case.size, before):
        chance[:, rows] = torch.softmax(part, dim=0)[1:].cpu()
    return _back(chance, case, how)


def _largest(outputs: Tensor) -> Tensor:
    """The class with the largest output, the first of equal ones; (C, ...) -> (...), uint8."""
    # `max` is many times as fast as `argmax` along a first axis on a CPU, with the same answer.
    return outputs.max(dim=0).indices.to(torch.uint8)


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
        found[rows] = _largest(every)
    return found


def stride(roi: Sequence[int], overlap: float) -> tuple[int, ...]:
    """Voxels from one window to the next along each axis."""
    return tuple(max(1, int(size * (1 - overlap))) for size in roi)


def slabs(
    network: nn.Module,
    crop: Callable[[Box], Tensor],
    size: Sequence[int],
    roi: Sequence[int],
    overlap: float,
) -> Iterator[tuple[int, Tensor]]:
    """The network's mean output over all windows, in slabs along the first axis.

    Args:
        network: (N, C, *roi) -> (N, outputs, *roi).
        crop: the part of the image in a box of size `roi`, (C, *roi).
        size: of the image, at least `roi` along every axis.
        roi: of a window.
        overlap: share of a window that the next one covers again.

    Yields:
        (first row, outputs (outputs, rows, *rest)), in order.
    """
    device = next(network.parameters()).device
    weight = compute_importance_map(
        tuple(roi), mode="gaussian", sigma_scale=SIGMA, device=device, dtype=torch.float32
    )
    boxes = dense_patch_slices(tuple(size), tuple(roi), stride(roi, overlap))
    held: Tensor | None = None
    first = 0
    together = max(1, min(MOST, VOXELS.get(device.type, 2**18) // math.prod(roi)))
    for number in range(0, len(boxes), together):
        group = boxes[number : number + together]
        with torch.no_grad():
            outputs = network(torch.stack([crop(box).to(device) for box in group])).float()
        for box, output in zip(group, outputs, strict=True):
            if held is None:  # the outputs and, last, their weights
                held = output.new_zeros((len(output) + 1, roi[0], *size[1:]))
            if (rows := box[0].start - first) > 0:
                yield from _means(held, first, box[0].start)
                # The rows that later windows still reach move to the front; the others are cleared.
                held[:, :-rows] = held[:, rows:].clone()
                held[:, -rows:] = 0
                first = box[0].start
            place = (slice(None), slice(None), *box[1:])
            held[:-1][place] += output * weight
            held[-1:][place] += weight
    if held is not None:
        yield from _means(held, first, size[0])


def _means(held: Tensor, first: int, end: int) -> Iterator[tuple[int, Tensor]]:
    for rows in pieces((end - first, *held.shape[2:])):
        yield first + rows.start, held[:-1, rows] / held[-1:, rows]


def pieces(size: Sequence[int]) -> Iterator[slice]:
    """Slices along the first axis of about `AT_ONCE` voxels each."""
    step = max(1, AT_ONCE // math.prod(size[1:]))
    for first in range(0, size[0], step):
        yield slice(first, min(first + step, size[0]))
