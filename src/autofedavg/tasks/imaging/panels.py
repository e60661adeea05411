"""A case beside its label and what networks found in it: one picture each, borders as lines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image

from autofedavg.tasks.imaging.contours import Colour, LineStyle, trace
from autofedavg.tasks.imaging.drawing import COLOURS, View, framed, picture, png
from autofedavg.tasks.imaging.files import Scan
from autofedavg.tasks.imaging.intensities import written
from autofedavg.tasks.imaging.pipeline import Pipeline

SHADES = 48  # per channel: noise takes most of a file, and finer ones show no more of it
MIXED = ((1.0, 0), *((share, grey) for share in (0.25, 0.5, 0.75) for grey in (0, 85, 170, 255)))
# With one class, colours tell who drew it; orange and blue differ for everyone.
LABEL, FOUND = COLOURS[0], COLOURS[1]
DRAWN = LineStyle(2.0)
BESIDE = LineStyle(1.5, dashed=True)  # the label, where it is only there to compare with


class LabelPanel(NamedTuple):
    """One panel."""

    png: bytes
    size: tuple[int, int]


def shades(scan: Scan, how: Pipeline) -> tuple[float, float]:
    """Which intensities are drawn black and white.

    The image's own range but for its last half percent at either end; never more than the network
    sees of it.
    """
    low, high = (float(v) for v in np.percentile(written(scan.values[0]), (0.5, 99.5)))
    if how.normalise == "window":
        low, high = max(low, how.window[0]), min(high, how.window[1])
    return (low, high) if low < high else how.window


def panels(seen: View, low: float, high: float, classes: int) -> list[LabelPanel]:
    """The image alone, with its label, and with each of the others beside the label.

    Args:
        seen: the slice with what was found in it.
        low: intensity that is drawn black.
        high: intensity that is drawn white.
        classes: how many there are; one is drawn in a colour for the label and one for the others,
            several have a colour each.
    """
    seen = framed(seen, low, high)
    plain = picture(seen, low, high).point(_rounded)
    own, others = colours_of(classes)
    drawn = [plain, _traced(plain, seen.label, own, DRAWN)]
    for found in seen.others:
        below = _traced(plain, found, others, DRAWN)
        drawn.append(_traced(below, seen.label, own, BESIDE))
    if not seen.colour:
        drawn = [made.quantize(palette=_palette(), dither=Image.Dither.NONE) for made in drawn]
    return [LabelPanel(png(made), made.size) for made in drawn]


def colours_of(classes: int) -> tuple[tuple[Colour, ...], tuple[Colour, ...]]:
    """The colours of the label's classes, and of the others'."""
    if classes == 1:
        return (LABEL,), (FOUND,)
    every = tuple(COLOURS[k % len(COLOURS)] for k in range(classes))
    return every, every


def _traced(
    made: Image.Image, classes: np.ndarray, colours: tuple[Colour, ...], line: LineStyle
) -> Image.Image:
    for number, colour in enumerate(colours, 1):
        made = trace(made, classes == number, colour, line)
    return made


def _shade(k: int) -> int:
    return round(255 * k / (SHADES - 1))


def _rounded(value: int) -> int:
    """The nearest shade to a channel's value."""
    return _shade(round(value * (SHADES - 1) / 255))


def _palette() -> Image.Image:
    """Shades of grey, and the lines' colours as they are and mixed with some of them."""
    values = [_shade(k) for k in range(SHADES) for _ in range(3)]
    values += [
        round(share * part + (1 - share) * grey)
        for colour in COLOURS
        for share, grey in MIXED
        for part in colour
    ]
    made = Image.new("P", (1, 1))
    made.putpalette(values)
    return made
