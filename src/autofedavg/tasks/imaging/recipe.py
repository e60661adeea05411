"""A pipeline in plain values, so that other software can feed the network and read its output.

Every number comes from the pipeline or from the module that uses it; `recipe_rules.toml` has the
words.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from importlib.resources import files
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
RULES: dict[str, str] = tomllib.loads(
    (files("autofedavg.tasks.imaging") / "recipe_rules.toml").read_text(encoding="utf-8")
)


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
            "image": RULES[f"image-{how.axes}"],
        },
        "steps": [
            *_grid(how),
            _intensities(how),
            {"step": "round", "to": np.dtype(STORED).name, "rule": RULES["round"]},
        ],
        "windows": {
            "size": list(how.roi),
            "overlap": how.overlap,
            "stride": list(stride(how.roi, how.overlap)),
            "weight": "gaussian",
            "sigma": [SIGMA * size for size in how.roi],
            "sigma_scale": SIGMA,
            "floor": FLOOR,
            "rule": RULES["windows"],
            "smaller_images": RULES["smaller-images"],
        },
        "output": {
            "name": "logits",
            "dtype": "float32",
            "axes": ["batch", "class", *axes],
            "shape": [None, len(classes) + 1, *how.roi],
            "classes": ["background", *classes],
            "meaning": RULES["output"],
        },
        "back": _back(how),
    }


def shrinks(how: Pipeline) -> list[int]:
    """The factor by which the network shrinks each axis; input sizes are multiples of it."""
    return [math.prod(step[axis] for step in how.shrinking) for axis in range(how.axes)]


def _grid(how: Pipeline) -> list[Values]:
    """The steps that change the grid: orientation, spacing, crop."""
    steps: list[Values] = []
    if how.axes == 3:
        steps.append({"step": "orientation", "to": AXES, "rule": RULES["orientation"]})
    if how.spacing != "keep":
        steps.append(
            {
                "step": "spacing",
                "mm": list(how.spacing),
                "interpolation": "linear",
                "outside": "nearest voxel",
                "same_within": SAME,
                "first_stays_within": STAYS,
                "rule": RULES["spacing"],
                "reference": RULES["spacing-reference"],
            }
        )
    if how.crop:
        above = how.normalise == "window"
        keep, value = ("above", how.window[0]) if above else ("other than", 0.0)
        steps.append({"step": "crop", "keep": keep, "value": value, "rule": RULES["crop"]})
    return steps


def _intensities(how: Pipeline) -> Values:
    written = RULES["written"].format(few=100 * FEW)
    known: dict[str, Values] = {
        "window": {"zero": how.window[0], "one": how.window[1]},
        "percentiles": {
            "percentiles": list(PERCENTILES),
            "few": FEW,
            "zero": RULES["percentiles-zero"].format(written=written),
            "one": RULES["percentiles-one"],
        },
        "zscore": {
            "much": MUCH,
            "few": FEW,
            "spreads": CLIPPED,
            "zero": RULES["zscore-zero"],
            "one": RULES["zscore-one"],
            "unless": RULES["zscore-unless"].format(
                much=100 * MUCH, spreads=CLIPPED, written=written
            ),
        },
    }
    return {
        "step": "normalise",
        "how": how.normalise,
        **known[how.normalise],
        "narrowest": NARROWEST,
        "clip": list(LIMITS[how.normalise]),
        "rule": RULES["normalise"],
    }


def _back(how: Pipeline) -> Values:
    if how.axes == 2:
        return {"resample": False, "rule": RULES["back-2"]}
    return {
        "resample": True,
        "interpolation": "linear",
        "outside": "nearest voxel",
        "cut_away": "background" if how.crop else None,
        "rule": RULES["back-3"].format(border=RULES["back-border"] if how.crop else ""),
    }
