"""Paired differences from the baseline over seeds: mean, 95 % interval, Holm's correction.

A seed is a whole training. The test over cases (`differences`) does not see chance in training;
this one does, and with few seeds it is honest about how little is known. Decision 67.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autofedavg.core.evaluation import SIGNIFICANT
from autofedavg.report.differences import by_seed, corrected, shown_p
from autofedavg.report.repeats import Results
from autofedavg.report.tables import Cell, Table, table_of

FEWEST = 2  # seeds that an interval needs


class Interval(NamedTuple):
    """Student's 95 % interval of a mean difference, and p of the paired t-test, two-sided."""

    low: float
    high: float
    p: float


class Gain(NamedTuple):
    """A mean difference in points over n seeds; of a single seed there is no interval."""

    mean: float
    n: int
    interval: Interval | None = None

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.mean:+.2f}"
        return f"{self.mean:+.2f} [{self.interval.low:+.2f}, {self.interval.high:+.2f}]"


def gain_over(studies: Sequence[Sequence[float]]) -> Gain | None:
    """The mean of differences over seeds; of several studies the mean of their means.

    Studies count equally and are taken as they are: the interval is about other seeds of these
    studies, not about other studies. Its degrees of freedom are those of Welch and Satterthwaite,
    of one study its seeds less one.

    Example:
        >>> str(gain_over([[1.0, 2.0, 3.0]])), str(gain_over([[1.0]]))
        ('+2.00 [-0.48, +4.48]', '+1.00')
    """
    if not studies or not all(studies):
        return None
    mean = statistics.fmean(map(statistics.fmean, studies))
    n = sum(map(len, studies))
    if any(len(gains) < FEWEST for gains in studies):
        return Gain(mean, n)
    squares = [statistics.variance(gains) / len(gains) for gains in studies]
    error = math.sqrt(math.fsum(squares)) / len(studies)
    if error == 0.0:  # the same in every seed, as for a row that is the baseline under another name
        return Gain(mean, n, Interval(mean, mean, float(mean == 0.0)))
    parts = [square / sum(squares) for square in squares]
    freedom = 1 / sum(p**2 / (len(g) - 1) for p, g in zip(parts, studies, strict=True))
    from scipy import stats

    half = float(stats.t.ppf(1 - SIGNIFICANT / 2, freedom)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, freedom))
    return Gain(mean, n, Interval(mean - half, mean + half, p))


def holm(gains: Mapping[str, Gain]) -> dict[str, float]:
    """P values by Holm's method, of those that have any."""
    return corrected({name: gain.interval.p for name, gain in gains.items() if gain.interval})


def verdict(gains: Mapping[str, Gain], baseline: str) -> str:
    """Which rows differ from the baseline after Holm's correction, in a sentence."""
    tested = holm(gains)
    if not tested:
        return f"No row has {FEWEST} seeds in common with {baseline}, so nothing is tested."
    above, below = ("; ".join(names) or "none" for names in _significant(gains))
    how = f"Corrected for the {len(tested)} rows (Holm),"
    if len(tested) == 1:
        how = "One row is tested, so nothing is corrected;"
    return (
        f"{how} with p below {SIGNIFICANT}, above {baseline}: {above}, "
        f"and below {baseline}: {below}."
    )


def _significant(gains: Mapping[str, Gain]) -> tuple[list[str], list[str]]:
    """The rows above and below the baseline after Holm's correction."""
    sure = [name for name, p in holm(gains).items() if p < SIGNIFICANT]
    above = [name for name in sure if gains[name].mean > 0]
    return above, [name for name in sure if gains[name].mean < 0]


def p_cell(p: float) -> Cell:
    """A p value."""
    return Cell(p, text=shown_p(p).removeprefix("= "))


def seed_gains(results: Results) -> dict[str, Gain]:
    """Label -> paired differences, of the rows that share two seeds with the baseline."""
    baseline = results.baseline_row
    if baseline is None:
        return {}
    found = {row.label: gain_over([by_seed(row, baseline)]) for row in results.rows}
    del found[baseline.label]
    return {label: gain for label, gain in found.items() if gain and gain.interval}


def counted(gains: Mapping[str, Gain], baseline: str) -> str:
    """How many rows differ from the baseline after Holm's correction, in a sentence."""
    above, below = (len(names) or "none" for names in _significant(gains))
    rows = f"{len(gains)} row{'s' * (len(gains) != 1)}"
    return (
        f"Over seeds, with Holm's correction for {rows}: {above} significantly above {baseline}, "
        f"{below} below."
    )


def seeds_table(results: Results) -> Table | None:
    """Paired differences over seeds, a line per row that shares two seeds with the baseline."""
    baseline, gains = results.baseline_row, seed_gains(results)
    if baseline is None:
        return None
    sure = holm(gains)
    rows = []
    for label, (mean, n, interval) in gains.items():
        if interval:
            span = [Cell(x, text=f"{x:+.2f}") for x in (mean, interval.low, interval.high)]
            tests = p_cell(interval.p), p_cell(sure[label])
            rows.append((label, (Cell(n, text=str(n)), *span, *tests)))
    notes = (
        f"Global test avg of a row minus that of {baseline.label} with the same seed, in points: "
        "mean over seeds, Student's 95 % interval, and p of the paired t-test, two-sided. With two "
        "or three seeds intervals are wide.",
        verdict(gains, baseline.label),
    )
    heads = ("seeds", "difference", "95 % from", "95 % to", "p", "p (Holm)")
    title = f"Differences from {baseline.label} over seeds"
    return table_of("seeds", title, heads, rows, notes)
