"""Pictures of a case: one upright slice, with the borders of its label and of predictions."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from contourpy import contour_generator
from nibabel.orientations import apply_orientation, io_orientation
from PIL import Image, ImageDraw

from autofedavg.tasks.imaging.intensities import written
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.readers import Scan

Colour = tuple[int, int, int]
LONGEST = 256  # pixels of a picture's longer side
BRIGHT = 0.15  # of the way from black to white: what is darker may be noise around a body,
SPECKS = 0.02  # and so may be what is brighter in no more than this share of a row
# Distinct for people with any kind of colour vision, and on grey.
COLOURS: tuple[Colour, ...] = ((230, 159, 0), (86, 180, 233), (0, 200, 140),
                               (240, 228, 66), (213, 94, 0), (204, 121, 167))  # fmt: skip
FINE = 4  # times finer than the picture that lines are drawn, for smooth edges
CASING = 1.0  # pixels of darkness on either side of a line, visible on light ground
DARKNESS = 0.55
DASH, GAP = 5.0, 4.0  # pixels
SHADES = 48  # per channel: noise takes most of a file, and finer ones show no more of it
MIXED = ((1.0, 0), *((share, grey) for share in (0.25, 0.5, 0.75) for grey in (0, 85, 170, 255)))
# With one class, colours tell label and prediction apart; orange and blue differ for everyone.
LABEL, FOUND = COLOURS[0], COLOURS[1]


class View(NamedTuple):
    """One slice."""

    image: np.ndarray  # (C, rows, columns)
    label: np.ndarray  # its label, (rows, columns)
    pixel: tuple[float, float]  # mm per row and column; 1 where the spacing is unknown
    slice: int | None  # the number of the slice, from 1; None for flat images
    slices: int  # their number
    # More classes on the same grid, such as predictions, in the same slice.
    others: tuple[np.ndarray, ...] = ()
    upright: bool = False  # whether the patient's right is on the left and the front is up

    @property
    def colour(self) -> bool:
        """Whether it is a picture in colour: flat, with three channels."""
        return self.slice is None and len(self.image) == 3


def view(scan: Scan, label: np.ndarray, *others: np.ndarray) -> View:
    """The slice where the label is largest, upright where the orientation is known.

    If the label is empty, the `others` decide on the slice. All are on the grid of the image.
    """
    values, masks, pixel = np.moveaxis(scan.values, 0, -1), [label, *others], (1.0, 1.0)
    upright = scan.affine is not None and scan.spacing is not None
    if scan.affine is not None and scan.spacing is not None:
        axes = io_orientation(scan.affine)
        values = apply_orientation(values, axes)
        masks = [apply_orientation(mask, axes) for mask in masks]
        right, front = (int(np.argmax(axes[:, 0] == k)) for k in (0, 1))
        pixel = (scan.spacing[front], scan.spacing[right])
    number, slices = None, 1
    if label.ndim == 3:
        place, slices = _fullest(masks), masks[0].shape[2]
        number = place + 1
        # The first axis of a volume runs along rows; flat images come as rows and columns.
        values = values[:, :, place].swapaxes(0, 1)
        masks = [mask[:, :, place].T for mask in masks]
    image = np.moveaxis(values, -1, 0)
    if upright:  # front up, the right side to the left, as radiologists look
        image, masks = image[:, ::-1, ::-1], [mask[::-1, ::-1] for mask in masks]
    return View(image, masks[0], pixel, number, slices, tuple(masks[1:]), upright)


def _fullest(masks: list[np.ndarray]) -> int:
    """The slice with most of the first mask; if that is empty, of the others; else the middle."""
    areas = [(mask > 0).sum(axis=(0, 1)) for mask in masks]
    for area in (areas[0], sum(areas[1:], np.zeros_like(areas[0]))):
        if area.any():
            return int(area.argmax())
    return len(areas[0]) // 2


def framed(seen: View, low: float, high: float) -> View:
    """A grey slice cut to what is not black or has a label, with a margin; colour stays whole."""
    if seen.colour:
        return seen
    bright = seen.image[0] > low + BRIGHT * (high - low)
    drawn = np.any([mask > 0 for mask in (seen.label, *seen.others)], axis=0)
    parts = []
    for across in (1, 0):
        found = np.flatnonzero((bright.mean(axis=across) > SPECKS) | drawn.any(axis=across))
        margin = 1 + bright.shape[1 - across] // 64
        parts.append(
            slice(max(0, found[0] - margin), found[-1] + margin + 1) if len(found) else slice(None)
        )
    box = tuple(parts)
    others = tuple(mask[box] for mask in seen.others)
    return seen._replace(image=seen.image[:, *box], label=seen.label[box], others=others)


def picture(seen: View, low: float, high: float, longest: int = LONGEST) -> Image.Image:
    """The slice without lines: bytes of colour as they are, else `low` black and `high` white."""
    if seen.colour and seen.image.dtype == np.uint8:
        low, high = 0.0, 255.0
    channels = seen.image[:3] if seen.colour else seen.image[:1].repeat(3, axis=0)
    scaled = (channels.astype(np.float32) - low) / max(high - low, 1e-6)
    shown = (np.clip(scaled, 0, 1) * 255).round().astype(np.uint8)
    height, width = (n * mm for n, mm in zip(seen.label.shape, seen.pixel, strict=True))
    times = longest / max(height, width)
    size = (max(1, round(width * times)), max(1, round(height * times)))
    made = Image.fromarray(np.ascontiguousarray(shown.transpose(1, 2, 0)))
    return made.resize(size, Image.Resampling.BICUBIC)


class LineStyle(NamedTuple):
    """The width of a border in pixels, and whether it is dashed."""

    width: float = 2.0
    dashed: bool = False


SOLID = LineStyle(2.0)
DASHED = LineStyle(1.5, dashed=True)  # the label, next to a prediction


class LabelPanel(NamedTuple):
    """One picture."""

    png: bytes
    size: tuple[int, int]


def png(made: Image.Image) -> bytes:
    """The picture as a small PNG file."""
    kept = io.BytesIO()
    made.save(kept, "PNG", optimize=True)
    return kept.getvalue()


def shades(scan: Scan, how: Pipeline) -> tuple[float, float]:
    """The intensities drawn black and white: the 0.5 and 99.5 percentiles, within the window."""
    low, high = (float(v) for v in np.percentile(written(scan.values[0]), (0.5, 99.5)))
    if how.normalise == "window":
        low, high = max(low, how.window[0]), min(high, how.window[1])
    return (low, high) if low < high else how.window


def panels(seen: View, low: float, high: float, classes: int) -> list[LabelPanel]:
    """The image alone, with its label, and with each of `others` and the dashed label.

    A single class has one colour in the label and one in predictions; several classes have a colour
    each. Intensity `low` is drawn black, `high` white.
    """
    seen = framed(seen, low, high)
    plain = picture(seen, low, high).point(_rounded)
    own, others = colours_of(classes)
    drawn = [plain, traced(plain, seen.label, own)]
    drawn += [
        traced(traced(plain, found, others), seen.label, own, DASHED) for found in seen.others
    ]
    if not seen.colour:
        drawn = [made.quantize(palette=_palette(), dither=Image.Dither.NONE) for made in drawn]
    return [LabelPanel(png(made), made.size) for made in drawn]


def colours_of(classes: int) -> tuple[tuple[Colour, ...], tuple[Colour, ...]]:
    """The colours of the classes in the label, and in predictions."""
    if classes == 1:
        return (LABEL,), (FOUND,)
    every = tuple(COLOURS[k % len(COLOURS)] for k in range(classes))
    return every, every


def traced(
    made: Image.Image, classes: np.ndarray, colours: Sequence[Colour], style: LineStyle = SOLID
) -> Image.Image:
    """The picture with the borders of classes 1, 2, ... in their colours."""
    for number, colour in enumerate(colours, 1):
        made = trace(made, classes == number, colour, style)
    return made


def trace(made: Image.Image, mask: np.ndarray, colour: Colour, style: LineStyle) -> Image.Image:
    """The picture with the borders of a mask, which covers all of it, drawn on it."""
    times = np.array([made.height / mask.shape[0], made.width / mask.shape[1]])
    core, case = (Image.new("L", (made.width * FINE, made.height * FINE)) for _ in range(2))
    for border in borders(mask):
        scaled = border * times * FINE
        for part in _dashes(scaled) if style.dashed else [np.concatenate([scaled, scaled[:2]])]:
            points = [(column, row) for row, column in part]
            for layer, width in ((case, style.width + 2 * CASING), (core, style.width)):
                fine = round(width * FINE) | 1  # of an odd width, so that it has a middle
                ImageDraw.Draw(layer).line(points, fill=255, width=fine, joint="curve")
    dark = case.reduce(FINE).point(lambda value: round(value * DARKNESS))
    drawn = made.copy()
    drawn.paste((0, 0, 0), mask=dark)
    drawn.paste(colour, mask=core.reduce(FINE))
    return drawn


def borders(mask: np.ndarray) -> list[np.ndarray]:
    """The borders of a mask (rows, columns) as closed lines, around its parts and its holes.

    They run between the centres of pixels inside and outside (marching squares), corners rounded.
    Parts that only touch at a corner stay apart.

    Returns:
        For each border its points, (n, 2) as row and column; pixel (0, 0) reaches from 0 to 1.
    """
    # The generator counts from the centre of the first padded pixel, and repeats the first point.
    found = contour_generator(z=np.pad(np.asarray(mask, float), 1), line_type="Separate").lines(0.5)
    closed = [np.asarray(line)[:-1, ::-1] - 0.5 for line in found]
    rounded = []
    for points in closed:  # a curve inside the corners that touches the middle of every side
        middles = (points + np.roll(points, -1, axis=0)) / 2
        corners = (np.roll(middles, 1, axis=0) + 2 * points + middles) / 4
        rounded.append(np.stack([corners, middles], axis=1).reshape(-1, 2))
    return rounded


def _dashes(points: np.ndarray) -> Iterator[np.ndarray]:
    """Even dashes along a closed line; a line too short for any is drawn whole."""
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


def _shade(k: int) -> int:
    return round(255 * k / (SHADES - 1))


def _rounded(value: int) -> int:
    """The nearest shade to a channel's value."""
    return _shade(round(value * (SHADES - 1) / 255))


def _palette() -> Image.Image:
    """Shades of grey, and the colours of the lines, pure and mixed with some of them."""
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
