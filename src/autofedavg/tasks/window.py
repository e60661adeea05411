"""Sliding windows over an image of any size, slab by slab, so that memory stays small.

The windows, their weights and their average are those of MONAI's `SlidingWindowInferer`; it holds
the outputs of the whole image, which for a CT are gigabytes, and here only one window's depth of
them is held at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    # MONAI warns of optional packages while it is imported.
    warnings.simplefilter("ignore")
    from monai.data.utils import compute_importance_map, dense_patch_slices

Box = tuple[slice, ...]
BATCH = 8  # windows that go through the network together


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
        tuple(roi), mode="gaussian", sigma_scale=0.125, device=device, dtype=torch.float32
    )
    boxes = dense_patch_slices(tuple(size), tuple(roi), stride(roi, overlap))
    held: Tensor | None = None
    first = 0
    for number in range(0, len(boxes), BATCH):
        group = boxes[number : number + BATCH]
        with torch.no_grad():
            outputs = network(torch.stack([crop(box).to(device) for box in group])).float()
        for box, output in zip(group, outputs, strict=True):
            if held is None:  # the outputs and, last, their weights
                held = output.new_zeros((len(output) + 1, roi[0], *size[1:]))
            if box[0].start > first:
                yield first, _mean(held[:, : box[0].start - first])
                held = _moved(held, box[0].start - first)
                first = box[0].start
            place = (slice(None), slice(None), *box[1:])
            held[:-1][place] += output * weight
            held[-1:][place] += weight
    if held is not None:
        yield first, _mean(held)


def _mean(held: Tensor) -> Tensor:
    return held[:-1] / held[-1:]


def _moved(held: Tensor, rows: int) -> Tensor:
    """The rows that further windows reach, and empty ones after them."""
    moved = torch.zeros_like(held)
    moved[:, : held.shape[1] - rows] = held[:, rows:]
    return moved


def rows_at_once(size: Sequence[int], voxels: int = 2**23) -> int:
    """How many rows along the first axis hold about so many voxels."""
    return max(1, voxels // math.prod(size[1:]))
