"""Example slices as pictures: the image in grey or colour, its label as contour lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy import ndimage

from autofedavg.tasks.imaging.drawing import COLOURS, View, picture, png, view
from autofedavg.tasks.imaging.preparation import Case, Classes, load
from autofedavg.tasks.inspection.comparison import CaseLine


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
    made = draw(seen, window.low, window.high)
    return Example(line, why, seen.slice, seen.slices, made.size, png(made))


def draw(seen: View, low: float, high: float) -> Image.Image:
    """The picture with the borders of its label as lines of one pixel.

    Args:
        seen: the slice.
        low: intensity that is drawn black.
        high: intensity that is drawn white; bytes of colour are drawn as they are.
    """
    made = picture(seen, low, high)
    pixels = np.array(made)
    for number in range(1, int(seen.label.max()) + 1):
        mask = Image.fromarray(np.where(seen.label == number, 255, 0).astype(np.uint8))
        # BOX keeps a label of one voxel in sight when the picture is made smaller.
        there = np.array(mask.resize(made.size, Image.Resampling.BOX)) > 0
        edge = there & ~ndimage.binary_erosion(there)
        pixels[edge] = COLOURS[(number - 1) % len(COLOURS)]
    return Image.fromarray(pixels)
