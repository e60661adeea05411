"""A pipeline in plain values, so that other software can feed the network and read its output.

Every number comes from the pipeline or from the module that uses it; the rules describe that code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofedavg.tasks.imaging.image import AXES
from autofedavg.tasks.imaging.intensities import (
    CLIPPED,
    FEW,
    LIMITS,
    MUCH,
    NARROWEST,
    PERCENTILES,
    STORED,
)
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import SIGMA, stride

Values = dict[str, Any]
SPATIAL = {2: ("rows", "columns"), 3: ("right", "anterior", "superior")}
# MONAI's own numbers:
FLOOR = 1e-3  # smallest weight of a voxel in a window
SAME = 1e-3  # mm that a spacing may lie off the wanted one
STAYS = 1e-8  # new voxels that a corner may lie before the first
ROUNDED = {
    "step": "round",
    "to": np.dtype(STORED).name,
    "rule": "rounded to this type and back to float32, as the network was trained",
}
WRITTEN = f"the voxels other than 0, or all of them if {100 * FEW:g} % or fewer are other than 0"


def recipe(how: Pipeline, channels: int, classes: Sequence[str]) -> Values:
    """The steps from an image to the network's input, and from its output to a label.

    `classes` are the names without background, in the order of the network's outputs.
    """
    axes = list(SPATIAL[how.axes])
    return {
        "kind": "segmentation",
        "input": {
            "name": "image",
            "dtype": "float32",
            "axes": ["batch", "channel", *axes],
            "shape": [None, channels, *how.roi],
            "multiple_of": shrinks(how),
            "image": _image(how),
        },
        "steps": [*_grid(how), _intensities(how), ROUNDED],
        "windows": _windows(how),
        "output": {
            "name": "logits",
            "dtype": "float32",
            "axes": ["batch", "class", *axes],
            "shape": [None, len(classes) + 1, *how.roi],
            "classes": ["background", *classes],
            "meaning": "softmax over the axis class gives chances that sum to one; the number of "
            "the largest is the class",
        },
        "back": _back(how),
    }


def shrinks(how: Pipeline) -> list[int]:
    """The factor by which the network shrinks each axis; input sizes are multiples of it."""
    return [math.prod(step[axis] for step in how.shrinking) for axis in range(how.axes)]


def _image(how: Pipeline) -> str:
    if how.axes == 2:
        return (
            "pixels as rows, columns; colours (RGB) are channels; of a volume with a single slice "
            "rows are its second axis"
        )
    return (
        "voxels as x, y, z with an affine to mm in RAS, as NIfTI has it; several files of one case "
        "are its channels"
    )


def _grid(how: Pipeline) -> list[Values]:
    """The steps that change the grid: orientation, spacing, crop."""
    above = how.normalise == "window"
    orientation = {
        "step": "orientation",
        "to": AXES,
        "rule": "axes are swapped and flipped, without interpolation, to run nearest to right, "
        "anterior, superior; a volume whose file has no affine is left as it is",
    }
    spacing = {
        "step": "spacing",
        "mm": [] if how.spacing == "keep" else list(how.spacing),
        "interpolation": "linear",
        "outside": "nearest voxel",
        "same_within": SAME,
        "first_stays_within": STAYS,
        "rule": "a spacing that differs by no more than same_within is left as it is. Axes "
        "keep their directions, made orthogonal one after another where they are not. Sizes "
        "are round(extent + 1), half to even, the extent being how far the centres of voxels "
        "reach in new voxels. The centre of the first voxel stays where it is if no corner "
        "lies before it by more than first_stays_within new voxels along an axis, as happens "
        "by rounding of oblique affines; else size / 2 stays where it is",
        "reference": "monai.transforms.Spacing, mode bilinear, padding_mode border, "
        "align_corners False, dtype float32",
    }
    crop = {
        "step": "crop",
        "keep": "above" if above else "other than",
        "value": how.window[0] if above else 0.0,
        "rule": "the smallest box with every voxel kept in any channel, before intensities are "
        "normalised; the whole image where there is none",
    }
    used = ((orientation, how.axes == 3), (spacing, how.spacing != "keep"), (crop, how.crop))
    return [step for step, needed in used if needed]


def _intensities(how: Pipeline) -> Values:
    known: Mapping[str, Values] = {
        "window": {"zero": how.window[0], "one": how.window[1]},
        "percentiles": {
            "percentiles": list(PERCENTILES),
            "few": FEW,
            "zero": f"the first percentile of {WRITTEN}; linear between values",
            "one": "the second percentile of the same voxels",
        },
        "zscore": {
            "much": MUCH,
            "few": FEW,
            "spreads": CLIPPED,
            "zero": "the mean of the voxels above the channel's mean",
            "one": "zero plus their standard deviation (divided by n)",
            "unless": f"more than {100 * MUCH:g} % of the channel lies below zero minus "
            f"{CLIPPED:g} of these deviations, and its own standard deviation is larger: then "
            f"mean and deviation are those of {WRITTEN}",
        },
    }
    return {
        "step": "normalise",
        "how": how.normalise,
        **known[how.normalise],
        "narrowest": NARROWEST,
        "clip": list(LIMITS[how.normalise]),
        "rule": "channel by channel: clip((value - zero) / max(one - zero, narrowest))",
    }


def _windows(how: Pipeline) -> Values:
    return {
        "size": list(how.roi),
        "overlap": how.overlap,
        "stride": list(stride(how.roi, how.overlap)),
        "weight": "gaussian",
        "sigma": [SIGMA * size for size in how.roi],
        "sigma_scale": SIGMA,
        "floor": FLOOR,
        "rule": "windows begin at multiples of the stride; the last one along an axis is moved "
        "back to end with the image. The output is the mean of the windows' logits, weighted by "
        "exp(-d^2 / (2 sigma^2)), d in voxels from the window's middle, multiplied over the axes, "
        "and at least floor",
        "smaller_images": "an image smaller than a window is padded on both sides, (window - n) // "
        "2 in front, with each channel's smallest normalised value; the padding is cut off again",
    }


def _back(how: Pipeline) -> Values:
    if how.axes == 2:
        return {"resample": False, "rule": "argmax of the mean logits: the class of every pixel"}
    return {
        "resample": True,
        "interpolation": "linear",
        "outside": "nearest voxel",
        "cut_away": "background" if how.crop else None,
        "rule": "argmax of the mean logits where the prepared grid is the file's own. Else: "
        "softmax, then the chances of every class but background are resampled to the file's grid "
        "by both affines"
        + (", with a border of zeros, one voxel wide, around the box" if how.crop else "")
        + "; background is what they leave to one; argmax",
    }
