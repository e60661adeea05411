"""Ranks of rows over studies: Friedman's test, and Nemenyi's critical difference.

A study is a block, a row a treatment. Rank 1 is the highest score; equal scores share the mean of
their ranks. Decision 67.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autofedavg.core.evaluation import SIGNIFICANT

FEWEST = 3  # studies, and rows: with fewer of either there is no test


class Friedman(NamedTuple):
    """Friedman's test that all rows have the same rank, corrected for ties.

    Attributes:
        statistic: chi-square distributed with one degree of freedom fewer than there are rows.
        p: by that distribution; 1.0 where all rows are equal in all studies.
    """

    statistic: float
    p: float


def ranks_of(scores: Sequence[Sequence[float]]) -> list[list[float]]:
    """Study by study the ranks of its rows: 1 for the highest score, mean ranks for equal ones.

    Example:
        >>> ranks_of([[0.5, 0.9, 0.5]])
        [[2.5, 1.0, 2.5]]
    """
    from scipy import stats

    return [[float(r) for r in stats.rankdata([-x for x in study])] for study in scores]


def mean_ranks(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Every row's mean rank over the studies."""
    return [math.fsum(column) / len(column) for column in zip(*ranks, strict=True)]


def friedman(ranks: Sequence[Sequence[float]]) -> Friedman | None:
    """The test over studies; None with fewer than three studies or rows."""
    from scipy import stats

    if len(ranks) < FEWEST or len(ranks[0]) < FEWEST:
        return None
    if all(len(set(study)) == 1 for study in ranks):
        return Friedman(0.0, 1.0)
    found = stats.friedmanchisquare(*zip(*ranks, strict=True))
    return Friedman(float(found.statistic), float(found.pvalue))


def critical_difference(rows: int, studies: int) -> float:
    """How far apart two mean ranks must be to differ by Nemenyi's test at the 5 % level.

    The 95 % point of the studentised range of that many rows, by the square root of two, times
    sqrt(k (k + 1) / (6 N)) for k rows and N studies.

    Example:
        >>> round(critical_difference(3, 4), 3)
        1.657
    """
    from scipy import stats

    q = float(stats.studentized_range.ppf(1 - SIGNIFICANT, rows, math.inf)) / math.sqrt(2)
    return q * math.sqrt(rows * (rows + 1) / (6 * studies))


def alike(means: Sequence[float], critical: float) -> list[tuple[int, int]]:
    """Groups of rows that the test does not tell apart, as (first, last) of ascending mean ranks.

    Only groups of several rows, and none that lies within another.

    Example:
        >>> alike([1.0, 1.5, 2.4, 5.0], 1.0)
        [(0, 1), (1, 2)]
    """
    found: list[tuple[int, int]] = []
    for first, low in enumerate(means):
        last = max(k for k, mean in enumerate(means) if mean - low < critical)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
