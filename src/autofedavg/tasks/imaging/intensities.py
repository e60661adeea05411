"""Intensities as the network sees them: by a fixed window, or by each image's own."""

from __future__ import annotations

import numpy as np

from autofedavg.tasks.imaging.pipeline import Pipeline

CLIPPED = 5.0  # spreads from the mean


def normalised(values: np.ndarray, how: Pipeline) -> np.ndarray:
    """Intensities (C, ...) as the network sees them, channel by channel, float16."""
    made = np.empty(values.shape, np.float16)
    for channel, place in zip(values, made, strict=True):
        zero, one, least, most = _scale(channel, how)
        scaled = channel - np.float32(zero)
        scaled /= np.float32(max(one - zero, 1e-6))
        place[...] = np.clip(scaled, least, most, out=scaled)
    return made


def _scale(channel: np.ndarray, how: Pipeline) -> tuple[float, float, float, float]:
    """What becomes 0, what becomes 1, and where the result is clipped."""
    if how.normalise == "window":
        return *how.window, 0.0, 1.0
    if how.normalise == "zscore":
        mean, spread = moments(channel)
        return mean, mean + spread, -CLIPPED, CLIPPED
    low, high = (float(v) for v in np.percentile(written(channel), (0.5, 99.5)))
    return low, high, 0.0, 1.0


def moments(channel: np.ndarray) -> tuple[float, float]:
    """Mean and spread of what is brighter than the average: the body, not the air around it.

    Where much would be clipped that varies more than the body does, it is not air but dark
    structures on a bright ground, and the whole image counts.
    """
    bright = channel[channel > channel.mean(dtype=np.float64)]
    mean, spread = float(bright.mean(dtype=np.float64)), float(bright.std(dtype=np.float64))
    clipped = channel[channel < mean - CLIPPED * spread]
    if clipped.size > 0.02 * channel.size and clipped.std(dtype=np.float64) > spread:
        whole = written(channel)
        return float(whole.mean(dtype=np.float64)), float(whole.std(dtype=np.float64))
    return mean, spread


def written(channel: np.ndarray) -> np.ndarray:
    """The voxels other than 0, which scanners write where they saw nothing; all if 99 % are 0."""
    inside = channel[channel != 0]
    return inside if inside.size > 0.01 * channel.size else channel.ravel()
