"""Sliding windows over an image of any size, slab by slab, so that memory stays small.

Windows, weights and average are those of MONAI's `SlidingWindowInferer`. That class holds the
outputs of the whole image, gigabytes for a CT; here only one window's depth is held at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from autofedavg.tasks.imaging.image import Box

with warnings.catch_warnings():
    # MONAI warns of optional packages while it is imported.
    warnings.simplefilter("ignore")
    from monai.data.utils import compute_importance_map, dense_patch_slices

SIGMA = 0.125  # of a window's size: how fast its weight falls off from its middle
MOST = 8  # windows that go through the network together,
VOXELS = {"cpu": 2**18, "cuda": 2**22}  # and about how many voxels
AT_ONCE = 2**20  # voxels whose outputs are yielded together


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
        (first row, outputs (outputs, rows, *rest)), from the first row to the last.
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
            if box[0].start > first:
                yield from _means(held, first, box[0].start)
                _move(held, box[0].start - first)
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


def _move(held: Tensor, rows: int) -> None:
    """Moves the rows that later windows still reach to the front, and clears the others."""
    kept = held.shape[1] - rows
    held[:, :kept] = held[:, rows:].clone()
    held[:, kept:] = 0
