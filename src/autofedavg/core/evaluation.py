"""The columns of the paper's tables, from test scores, and the test behind the dagger.

global test avg: mean over sites of the best global model's mean test score.
local avg, local gen: mean on and off the diagonal of the K x K matrix of best local models.
personal avg: mean over sites of each site's personal model on its own test cases.
Also whether LearnAggWeight lowered its loss.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from autofedavg.core.scores import Group, Mean, Scores

SIGNIFICANT = 0.05
PART = 4  # a call's first and last steps are this part of it: single batches say little


class Summary(NamedTuple):
    """One run's numbers, as shares of one.

    Attributes:
        by_site: mean test score of the global model per site; empty without a global model.
        matrix: model site -> test site -> mean test score of that site's best local model.
        personal: mean test score of every site's personal model on its own cases; empty where the
            method has none.
    """

    by_site: Mapping[str, float]
    matrix: Mapping[str, Mapping[str, float]]
    personal: Mapping[str, float] = MappingProxyType({})

    @property
    def global_test_avg(self) -> float | None:
        return _mean(self.by_site.values())

    @property
    def worst_site(self) -> float | None:
        """The global model's lowest mean test score over sites."""
        return min(self.by_site.values(), default=None)

    @property
    def personal_avg(self) -> float | None:
        return _mean(self.personal.values())

    @property
    def personal_worst(self) -> float | None:
        return min(self.personal.values(), default=None)

    @property
    def local_avg(self) -> float | None:
        return _mean(self.matrix[k][k] for k in self.matrix if k in self.matrix[k])

    @property
    def local_gen(self) -> float | None:
        return _mean(v for k, row in self.matrix.items() for j, v in row.items() if j != k)


class Paired(NamedTuple):
    """A Wilcoxon signed-rank test of paired cases.

    Attributes:
        p: two-sided p value; 1.0 when no pair differs.
        gain: mean difference, method minus baseline; over sites of the mean over their cases, as
            in the column of averages (decision 24).
        n: number of pairs.
        leans: which way the test itself leans: 1 where the ranks of gains outweigh those of
            losses, -1 where they do not, 0 where they are equal.
    """

    p: float
    gain: float
    n: int
    leans: int = 1

    @property
    def dagger(self) -> bool:
        """Significantly better, as the paper marks it: by the test, and by the printed number."""
        return self.p < SIGNIFICANT and self.gain > 0 and self.leans > 0


def summarise(scores: Scores, metric: str) -> Summary:
    """The numbers of one run from its test scores."""
    means: dict[str, dict[str, float]] = {}
    for tested, mean in sorted(site_means(scores, metric)):
        means.setdefault(tested.model, {})[tested.site] = mean.value
    matrix, personal = (
        {
            model.removeprefix(kind): sites
            for model, sites in sorted(means.items())
            if model.startswith(kind)
        }
        for kind in ("local-", "personal-")
    )
    own = {site: scores[site] for site, scores in personal.items() if site in scores}
    return Summary(means.get("global", {}), matrix, own)


def site_means(scores: Scores, metric: str) -> Iterator[tuple[Group, Mean]]:
    """Every model's mean test score at every site, from its cases or as the site disclosed it.

    Means of several runs, such as folds, count by their cases: it is the mean of all of them.
    """
    for tested, column in scores.columns(metric=metric, split="test"):
        yield tested, Mean(mean_of(column.values), len(column.values))
    for tested, parts in scores.means(metric=metric, split="test"):
        values, counts = zip(*parts, strict=True)
        value = values[0] if len(values) == 1 else mean_of(values, counts)
        yield tested, Mean(value, sum(counts))


def case_means(
    repeats: Sequence[Scores], metric: str, model: str = "global"
) -> dict[tuple[str, str], float]:
    """(site, case) -> mean test score over the repeats of a run."""
    found: dict[tuple[str, str], list[float]] = {}
    for scores in repeats:
        for tested, column in scores.columns(model, metric, "test"):
            for case, value in zip(*column, strict=True):
                found.setdefault((tested.site, case), []).append(value)
    return {key: mean_of(values) for key, values in found.items()}


def compare(
    method: Mapping[tuple[str, str], float],
    baseline: Mapping[tuple[str, str], float],
    site: str | None = None,
) -> Paired | None:
    """Wilcoxon signed-rank test of a method against a baseline, paired by case.

    Args:
        method: scores by (site, case).
        baseline: the same for the baseline.
        site: one site's cases, or all cases pooled when None.

    Returns:
        None when no case is scored by both. Zero differences are dropped (Wilcoxon's own rule).
    """
    import numpy as np
    from scipy import stats

    keys = sorted(k for k in method.keys() & baseline.keys() if site is None or k[0] == site)
    if not keys:
        return None
    differences = np.array([method[key] - baseline[key] for key in keys])
    by_site: dict[str, list[float]] = {}
    for key, difference in zip(keys, differences, strict=True):
        by_site.setdefault(key[0], []).append(float(difference))
    gain = mean_of(list(map(mean_of, by_site.values())))
    if not differences.any():
        return Paired(1.0, gain, len(keys), 0)
    p = float(stats.wilcoxon(differences, zero_method="wilcox").pvalue)
    moved = differences[differences != 0]
    ranks = float((np.sign(moved) * stats.rankdata(np.abs(moved))).sum())
    return Paired(p, gain, len(keys), (ranks > 0) - (ranks < 0))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation over repeats; no deviation for a single one."""
    mean = mean_of(values)
    if len(values) < 2:
        return mean, None
    try:
        return mean, statistics.stdev(values)
    except OverflowError:
        return mean, math.inf


def mean_of(values: Sequence[float], shares: Sequence[float] | None = None) -> float:
    """The mean, also of numbers whose sum no float holds: folders of earlier versions have some.

    Args:
        values: one or more finite numbers.
        shares: how much each counts; equally, if not given.

    Example:
        >>> mean_of([1.0, 2.0]), mean_of([1.5e308, 1.5e308]), mean_of([1e308, 0.0], [1e9, 3e9])
        (1.5, 1.5e+308, 2.5e+307)
    """
    try:
        mean = statistics.fmean(values, shares)
    except OverflowError:
        mean = math.inf
    if math.isfinite(mean):
        return mean
    weights = [1.0] * len(values) if shares is None else shares
    total = math.fsum(weights)
    return math.fsum(
        value * (weight / total) for value, weight in zip(values, weights, strict=True)
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return mean_of(known) if known else None


def loss_ends(
    losses: Mapping[str, Sequence[float | None]], counted: Mapping[str, float] | None = None
) -> tuple[int, float, float] | None:
    """Whether a call of LearnAggWeight lowered its loss: that of its first and of its last steps.

    Args:
        losses: every site's, a number a message; None where it did not answer.
        counted: how much each site counts; equally, if not given.

    Returns:
        The number of messages, and the mean losses over sites in the first and the last quarter of
        them; None where there is nothing to compare.

    Example:
        >>> loss_ends({"A": [3.0, 2.0, 2.0, 1.0], "B": [1.0, None, 1.0, 0.0]})
        (4, 2.0, 0.5)
    """
    steps = max((len(values) for values in losses.values()), default=0)
    if steps < 2:
        return None
    part = max(1, steps // PART)
    found = [
        (counted[site] if counted else 1.0, first, last)
        for site, values in losses.items()
        for first, last in [(_known_mean(values[:part]), _known_mean(values[-part:]))]
        if first is not None and last is not None
    ]
    if not found:
        return None
    shares, firsts, lasts = zip(*found, strict=True)
    return steps, mean_of(firsts, shares), mean_of(lasts, shares)


def _known_mean(values: Sequence[float | None]) -> float | None:
    return _mean(value for value in values if value is not None)
