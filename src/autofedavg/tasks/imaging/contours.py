"""Borders of masks as smooth closed lines, drawn thin, dashed or whole, on any ground."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from contourpy import contour_generator
from PIL import Image, ImageDraw

FINE = 4  # times finer than the picture that lines are drawn, for smooth edges
CASING = 1.0  # pixels of darkness on either side of a line: light ground must not swallow it
DARKNESS = 0.55
DASH, GAP = 5.0, 4.0  # pixels
Colour = tuple[int, int, int]


class LineStyle(NamedTuple):
    """How a border is drawn: its width in pixels, and whether it is dashed."""

    width: float = 2.0
    dashed: bool = False


def borders(mask: np.ndarray) -> list[np.ndarray]:
    """The borders of a mask as closed lines, around its parts and around its holes.

    They run between the centres of pixels inside and outside (marching squares), corners rounded.
    Parts that only touch at a corner stay apart.

    Args:
        mask: (rows, columns), true inside.

    Returns:
        For each border its points, (n, 2) as row and column; pixel (0, 0) reaches from 0 to 1.
    """
    # The generator counts from the centre of the first padded pixel, and repeats the first point.
    found = contour_generator(z=np.pad(np.asarray(mask, float), 1), line_type="Separate").lines(0.5)
    return [_rounded(np.asarray(line)[:-1, ::-1] - 0.5) for line in found]


def _rounded(points: np.ndarray) -> np.ndarray:
    """A closed curve inside the corners of a closed line, touching the middle of its sides."""
    middles = (points + np.roll(points, -1, axis=0)) / 2
    corners = (np.roll(middles, 1, axis=0) + 2 * points + middles) / 4
    return np.stack([corners, middles], axis=1).reshape(-1, 2)


def trace(made: Image.Image, mask: np.ndarray, colour: Colour, line: LineStyle) -> Image.Image:
    """The picture with the borders of a mask, which covers all of it, drawn on it."""
    times = np.array([made.height / mask.shape[0], made.width / mask.shape[1]])
    core, case = (Image.new("L", (made.width * FINE, made.height * FINE)) for _ in range(2))
    for border in borders(mask):
        scaled = border * times * FINE
        for part in _dashes(scaled) if line.dashed else [np.concatenate([scaled, scaled[:2]])]:
            points = [(column, row) for row, column in part]
            for layer, width in ((case, line.width + 2 * CASING), (core, line.width)):
                fine = round(width * FINE) | 1  # of an odd width, so that it has a middle
                ImageDraw.Draw(layer).line(points, fill=255, width=fine, joint="curve")
    dark = case.reduce(FINE).point(lambda value: round(value * DARKNESS))
    drawn = made.copy()
    drawn.paste((0, 0, 0), mask=dark)
    drawn.paste(colour, mask=core.reduce(FINE))
    return drawn


def _dashes(points: np.ndarray) -> Iterator[np.ndarray]:
    """Even dashes along a closed line; one too short for any is whole."""
    closed = np.concatenate([points, points[:1]])
    run = np.concatenate([[0.0], np.linalg.norm(np.diff(closed, axis=0), axis=1).cumsum()])
    count = round(run[-1] / (DASH + GAP) / FINE)
    if count < 2:
        yield closed
        return
    period = run[-1] / count
    for start in np.arange(count) * period:
        end = start + period * DASH / (DASH + GAP)
        within = run[(run > start) & (run < end)]
        along = np.concatenate([[start], within, [end]])
        yield np.stack([np.interp(along, run, closed[:, axis]) for axis in (0, 1)], axis=1)
