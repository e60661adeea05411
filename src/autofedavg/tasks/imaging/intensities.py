"""Normalised intensities: by a fixed window, or by each image's own statistics."""

from __future__ import annotations

import numpy as np

from autofedavg.tasks.imaging.pipeline import Normalise, Pipeline

CLIPPED = 5.0  # standard deviations from the mean
LIMITS: dict[Normalise, tuple[float, float]] = {"window": (0.0, 1.0), "percentiles": (0.0, 1.0),
                                                "zscore": (-CLIPPED, CLIPPED)}  # fmt: skip
PERCENTILES = (0.5, 99.5)
MUCH = 0.02  # of a channel: more than this is not clipped away as air,
FEW = 0.01  # and fewer voxels other than 0 do not represent it
NARROWEST = 1e-6  # smallest divisor of intensities
STORED = np.float16


def normalised(values: np.ndarray, how: Pipeline) -> np.ndarray:
    """Normalised intensities (C, ...), channel by channel, float16."""
    made = np.empty(values.shape, STORED)
    least, most = LIMITS[how.normalise]
    for channel, place in zip(values, made, strict=True):
        zero, one = _scale(channel, how)
        scaled = channel - np.float32(zero)
        scaled /= np.float32(max(one - zero, NARROWEST))
        place[...] = np.clip(scaled, least, most, out=scaled)
    return made


def _scale(channel: np.ndarray, how: Pipeline) -> tuple[float, float]:
    """The intensities that become 0 and 1."""
    if how.normalise == "window":
        return how.window
    if how.normalise == "zscore":
        mean, spread = moments(channel)
        return mean, mean + spread
    low, high = (float(v) for v in np.percentile(written(channel), PERCENTILES))
    return low, high


def moments(channel: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of voxels above the average: the body, not the air around it.

    If many voxels would be clipped that vary more than the body, they are dark structures on a
    bright ground, and the whole image counts.
    """
    bright = channel[channel > channel.mean(dtype=np.float64)]
    mean, spread = float(bright.mean(dtype=np.float64)), float(bright.std(dtype=np.float64))
    clipped = channel[channel < mean - CLIPPED * spread]
    if clipped.size > MUCH * channel.size and clipped.std(dtype=np.float64) > spread:
        whole = written(channel)
        return float(whole.mean(dtype=np.float64)), float(whole.std(dtype=np.float64))
    return mean, spread


def written(channel: np.ndarray) -> np.ndarray:
    """The voxels other than 0, which scanners write outside the image; all if 99 % are 0."""
    inside = channel[channel != 0]
    return inside if inside.size > FEW * channel.size else channel.ravel()
