"""Outlines and intervals of the Dirichlet, against its density and its samples."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.report.figures.simplex import marginal_intervals
from autofedavg.report.figures.triangle import HALF_HEIGHT, LEVELS, on_triangle, outlines

betas = st.lists(st.floats(1.01, 60), min_size=3, max_size=3)


def weights_at(point: np.ndarray) -> np.ndarray:
    """The three weights of a point of the triangle, solved from the corners."""
    third = point[1] / HALF_HEIGHT
    second = point[0] - third / 2
    return np.array([1 - second - third, second, third])


def log_density(beta: np.ndarray, alpha: np.ndarray) -> float:
    return float(((beta - 1) * np.log(alpha)).sum())


@given(betas)
def test_an_outline_is_where_the_density_has_its_share_of_the_peak(beta) -> None:
    beta = np.array(beta)
    peak = log_density(beta, (beta - 1) / (beta - 1).sum())
    for level, ring in outlines(beta).items():
        for point in ring:
            alpha = weights_at(point)
            assert alpha.min() > -1e-9
            if alpha.min() > 1e-9:
                assert log_density(beta, alpha) - peak == pytest.approx(math.log(level), abs=1e-4)


@given(betas)
def test_outlines_lie_inside_each_other_around_the_mode(beta) -> None:
    beta = np.array(beta)
    mode = np.array(on_triangle((beta - 1) / (beta - 1).sum()))
    rings = outlines(beta)
    away = [np.linalg.norm(rings[level] - mode, axis=1) for level in sorted(LEVELS)]
    assert all((outer >= inner - 1e-9).all() for outer, inner in itertools.pairwise(away))


def test_corners_and_middle_of_the_triangle() -> None:
    assert on_triangle([1, 0, 0]) == (0, 0)
    assert on_triangle([0, 1, 0]) == (1, 0)
    assert on_triangle([0, 0, 1]) == (0.5, HALF_HEIGHT)
    assert on_triangle([1 / 3] * 3) == pytest.approx((0.5, HALF_HEIGHT / 3))


def test_intervals_hold_the_share_of_draws_they_claim() -> None:
    beta = [7.9, 2.1, 8.7, 1.5]
    drawn = np.random.default_rng(0).dirichlet(beta, 200_000)
    low, quarter, three, high = marginal_intervals(beta).T
    for share, below, above in ((0.9, low, high), (0.5, quarter, three)):
        inside = ((drawn > below) & (drawn < above)).mean(axis=0)
        assert inside == pytest.approx([share] * 4, abs=0.005)
