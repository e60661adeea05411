"""One slice of a case, upright, in its true shape, in grey or colour."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
from nibabel.orientations import apply_orientation, io_orientation
from PIL import Image

from autofedavg.tasks.imaging.readers import Scan

Colour = tuple[int, int, int]
LONGEST = 256  # pixels of a picture's longer side
BRIGHT = 0.15  # of the way from black to white: what is darker may be noise around a body,
SPECKS = 0.02  # and so may be what is brighter in no more than this share of a row
# Distinct for people with any kind of colour vision, and on grey.
COLOURS: tuple[Colour, ...] = ((230, 159, 0), (86, 180, 233), (0, 200, 140),
                               (240, 228, 66), (213, 94, 0), (204, 121, 167))  # fmt: skip


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


def png(made: Image.Image) -> bytes:
    """The picture as a small PNG file."""
    kept = io.BytesIO()
    made.save(kept, "PNG", optimize=True)
    return kept.getvalue()
