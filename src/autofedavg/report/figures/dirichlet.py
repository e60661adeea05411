"""The Dirichlet distribution as pictures need it: outlines on the triangle, intervals per site."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVELS = (0.05, 0.35, 0.65, 0.95)  # of the density's peak
HALF_HEIGHT = math.sqrt(3) / 2
_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, HALF_HEIGHT]])


def on_triangle(alpha: Sequence[float]) -> tuple[float, float]:
    """Where three weights lie in a triangle of unit sides; the third site's corner is on top."""
    x, y = np.asarray(alpha, dtype=float) @ _CORNERS
    return float(x), float(y)


def outlines(beta: Sequence[float], points: int = 40) -> dict[float, np.ndarray]:
    """Level -> (points, 2) on the triangle, where the density has that share of its peak.

    The density of Eq. 5 is log-concave for beta of at least 1, so each region is convex and a
    ray from the mode leaves it once: where, is found by bisection.
    """
    power = np.maximum(np.asarray(beta, dtype=float) - 1, 1e-9)
    mode = power / power.sum()
    angles = np.linspace(0, 2 * math.pi, points, endpoint=False)
    # Two directions that span the simplex's plane and stay orthonormal on the triangle.
    across = np.array([-1.0, 1.0, 0.0])
    up = np.array([-0.5, -0.5, 1.0]) / HALF_HEIGHT
    rays = np.cos(angles)[:, None] * across + np.sin(angles)[:, None] * up
    with np.errstate(divide="ignore"):
        limit = np.where(rays < 0, -mode / rays, np.inf).min(axis=1)
    found = {}
    for level in LEVELS:
        low, high = np.zeros(points), limit.copy()
        for _ in range(50):
            middle = (low + high) / 2
            place = np.maximum(mode + middle[:, None] * rays, 1e-300)
            inside = (power * (np.log(place) - np.log(mode))).sum(axis=1) >= math.log(level)
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        found[level] = (mode + low[:, None] * rays) @ _CORNERS
    return found


def marginal_intervals(
    beta: Sequence[float], shares: Sequence[float] = (0.05, 0.25, 0.75, 0.95)
) -> np.ndarray:
    """(K, shares): quantiles of each site's weight, which is Beta(beta_k, rest) distributed."""
    own = np.asarray(beta, dtype=float)[:, None]
    found: np.ndarray = stats.beta.ppf(np.asarray(shares)[None, :], own, own.sum() - own)
    return found
