"""Example slices as pictures: the image in grey or colour, its label as contour lines."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from nibabel.orientations import apply_orientation, io_orientation
from PIL import Image
from scipy import ndimage

from autofedavg.tasks.imaging.files import Scan
from autofedavg.tasks.imaging.preparation import Case, Classes, load
from autofedavg.tasks.inspection.comparison import CaseLine

LONGEST = 256  # pixels of a picture's longer side
# Told apart by people with any kind of colour vision, and on grey.
COLOURS = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 200, 140),
    (240, 228, 66),
    (213, 94, 0),
    (204, 121, 167),
)


class Example(NamedTuple):
    """A picture of one case.

    Attributes:
        why: what the case is an example of.
        slice: which slice is shown, from 1; None for flat images.
        slices: how many there are.
        png: the picture.
    """

    line: CaseLine
    why: str
    slice: int | None
    slices: int
    size: tuple[int, int]
    png: bytes


class View(NamedTuple):
    """What is seen of a case: a slice (C, rows, columns), its label, and mm per row and column."""

    image: np.ndarray
    label: np.ndarray
    pixel: tuple[float, float]
    slice: int | None
    slices: int


def choose(lines: Sequence[CaseLine]) -> list[tuple[CaseLine, str]]:
    """The cases to show: the median, the smallest and the largest label that is not empty."""
    labelled = [line for line in lines if line.label_voxels] or list(lines)
    order = sorted(labelled, key=lambda line: (line.label_ml or line.label_voxels, line.case))
    wanted = {
        (len(order) - 1) // 2: "median label",
        0: "smallest label",
        len(order) - 1: "largest label",
    }
    if len(order) < 3:
        wanted = {0: "smallest label", len(order) - 1: "largest label"}
    if len(order) == 1:
        wanted = {0: "only label"}
    return [(order[place], why) for place, why in wanted.items()]


def example(line: CaseLine, why: str, case: Case, classes: Classes) -> Example:
    """Draws one case.

    Raises:
        DataError: its files cannot be read any more.
    """
    seen = view(*load(case, classes))
    window = line.intensities(0)
    picture = draw(seen, window.low, window.high)
    kept = io.BytesIO()
    picture.save(kept, "PNG", optimize=True)
    return Example(line, why, seen.slice, seen.slices, picture.size, kept.getvalue())


def view(scan: Scan, label: np.ndarray) -> View:
    """The slice where the label is largest, upright where space is known."""
    values = np.moveaxis(scan.values, 0, -1)
    pixel = (1.0, 1.0)
    known = scan.affine is not None and scan.spacing is not None
    if scan.affine is not None and scan.spacing is not None:
        axes = io_orientation(scan.affine)
        values, label = apply_orientation(values, axes), apply_orientation(label, axes)
        right, front = (int(np.argmax(axes[:, 0] == k)) for k in (0, 1))
        pixel = (scan.spacing[front], scan.spacing[right])
    place, slices = None, 1
    if label.ndim == 3:
        area, slices = (label > 0).sum(axis=(0, 1)), label.shape[2]
        place = int(area.argmax()) if area.any() else slices // 2
        # The first axis of a volume runs along rows; flat images come as rows and columns.
        values, label = values[:, :, place].swapaxes(0, 1), label[:, :, place].T
    image = np.moveaxis(values, -1, 0)
    if known:  # front up, the right side to the left, as radiologists look
        image, label = image[:, ::-1, ::-1], label[::-1, ::-1]
    return View(image, label, pixel, None if place is None else place + 1, slices)


def draw(seen: View, low: float, high: float) -> Image.Image:
    """The picture: colour where a flat image has three channels, else its first channel.

    Args:
        seen: the slice.
        low: intensity that is drawn black.
        high: intensity that is drawn white; bytes of colour are drawn as they are.
    """
    colour = seen.slice is None and len(seen.image) == 3
    if colour and seen.image.dtype == np.uint8:
        low, high = 0.0, 255.0
    channels = seen.image[:3] if colour else seen.image[:1].repeat(3, axis=0)
    scaled = (channels.astype(np.float32) - low) / max(high - low, 1e-6)
    shown = (np.clip(scaled, 0, 1) * 255).round().astype(np.uint8)
    height, width = (n * mm for n, mm in zip(seen.label.shape, seen.pixel, strict=True))
    times = LONGEST / max(height, width)
    size = (max(1, round(width * times)), max(1, round(height * times)))
    picture = Image.fromarray(np.ascontiguousarray(shown.transpose(1, 2, 0)))
    pixels = np.array(picture.resize(size, Image.Resampling.BILINEAR))
    for number in range(1, int(seen.label.max()) + 1):
        mask = Image.fromarray(np.where(seen.label == number, 255, 0).astype(np.uint8))
        # BOX keeps a label of one voxel in sight when the picture is made smaller.
        there = np.array(mask.resize(size, Image.Resampling.BOX)) > 0
        edge = there & ~ndimage.binary_erosion(there)
        pixels[edge] = COLOURS[(number - 1) % len(COLOURS)]
    return Image.fromarray(pixels)
