"""What Gaussian noise on a random sample of patients costs: epsilon at a given delta.

Rényi differential privacy of the Poisson-sampled Gaussian mechanism (Mironov, Talwar and Zhang
2019, arXiv 1908.10530), added up over steps, and turned into (epsilon, delta) by Proposition 12 of
Canonne, Kamath and Steinke 2020 (arXiv 2004.00010). Neighbouring data sets differ by one patient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autofedavg.core.errors import ConfigError

ORDERS = np.concatenate([np.arange(1.05, 12, 0.05), np.arange(12, 64), np.geomspace(64, 4096, 40)])
MOST_NOISE = 1e6  # beyond it a release says nothing


class Mechanism(NamedTuple):
    """One noisy sum: every patient takes part with chance `q`; noise of `sigma` times the bound."""

    q: float
    sigma: float


Spent = Mapping[Mechanism, int]  # how many times each was used


@lru_cache(maxsize=1024)
def divergences(mechanism: Mechanism) -> np.ndarray:
    """The Rényi divergence of one release at each of the ORDERS."""
    q, sigma = mechanism
    if q == 1:
        return ORDERS / (2 * sigma**2)
    return np.array([_sampled(q, sigma, float(order)) for order in ORDERS])


def _sampled(q: float, sigma: float, order: float) -> float:
    """The divergence of one order: log E[r(z)^order] / (order - 1), z from N(0, sigma^2).

    r(z) = 1 - q + q exp((2z - 1) / (2 sigma^2)) is the ratio of the two densities. The error of
    the trapezoidal rule falls exponentially: the integrand is analytic within pi sigma^2 of the
    real line.
    """
    width = min(sigma / 8, sigma**2 / 4)
    low, high = -12 * sigma, order + 12 * sigma  # sampled patients shift the mean by up to `order`
    points = math.ceil((high - low) / width)
    if points > 10**5:  # an order that is of no use with so little noise
        return math.inf
    z = np.linspace(low, high, points)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * sigma**2))
    logs = order * ratio - z**2 / (2 * sigma**2)
    peak = logs.max()
    area = np.exp(logs - peak).sum() * (z[1] - z[0]) / (sigma * math.sqrt(2 * math.pi))
    return max(0.0, float(peak + np.log(area)) / (order - 1))


def composed(spent: Spent) -> np.ndarray:
    """The divergences of many releases about the same patients."""
    parts = [count * divergences(mechanism) for mechanism, count in spent.items() if count]
    return sum(parts, np.zeros_like(ORDERS))


def parallel(groups: Iterable[Spent]) -> np.ndarray:
    """The divergences for the patient who is worst off, of groups that share no patient."""
    worst = np.zeros_like(ORDERS)
    for group in groups:
        worst = np.maximum(worst, composed(group))
    return worst


def epsilon_of(divergence: np.ndarray, delta: float) -> float:
    """The smallest epsilon that the divergences prove at this delta."""
    if not divergence.any():
        return 0.0
    bounds = divergence + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(np.min(bounds)))


def epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` releases, each of a fresh sample of the patients.

    Example:
        >>> round(epsilon(q=4 / 124, sigma=5.1, steps=90_000, delta=1e-3), 1)
        8.0
    """
    return epsilon_of(composed({Mechanism(q, sigma): steps}), delta)


def noise_for(target: float, q: float, steps: int, delta: float) -> float:
    """The smallest noise multiplier, to a thousandth of it, that stays within epsilon = `target`.

    Raises:
        ConfigError: no noise does.
    """
    low, high = 0.0, 1.0
    while epsilon(q, high, steps, delta) > target:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise ConfigError(
                f"no noise gives epsilon = {target:g} with {steps} steps and delta = {delta:g}",
                where="privacy",
                remedy="use fewer steps, or a larger epsilon",
            )
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon(q, middle, steps, delta) <= target else (middle, high)
    return high
