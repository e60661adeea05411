"""The mean gain of one model over another on the same cases, with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95


class Gain(NamedTuple):
    """A mean difference of scores, as a share of one.

    Attributes:
        mean: over sites of the mean over their cases, as in the column of averages.
        margin: half the width of its 95 % confidence interval.
    """

    mean: float
    margin: float

    @property
    def low(self) -> float:
        return self.mean - self.margin

    @property
    def high(self) -> float:
        return self.mean + self.margin


def gain_of(differences: Mapping[str, Sequence[float]]) -> Gain:
    """The mean gain over sites, from every site's paired differences of single cases.

    Sites are strata: the error is that of a mean over them, each with a variance of its own, and
    Student's t has the degrees of freedom of Welch and Satterthwaite. The interval is about these
    sites; it says nothing of further ones.

    Args:
        differences: by site, one number for each of at least two cases.

    Example:
        >>> gain_of({"A": [0.0, 0.0], "B": [0.5, 0.5]})
        Gain(mean=0.25, margin=0.0)
    """
    K = len(differences)
    mean = statistics.fmean(statistics.fmean(mine) for mine in differences.values())
    errors = {
        site: statistics.variance(mine) / len(mine) / K**2 for site, mine in differences.items()
    }
    variance = math.fsum(errors.values())
    if not variance:
        return Gain(mean, 0.0)
    from scipy import stats

    parts = (errors[site] ** 2 / (len(mine) - 1) for site, mine in differences.items())
    freedom = variance**2 / math.fsum(parts)
    return Gain(mean, float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(variance))
