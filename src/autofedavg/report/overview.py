"""Several studies side by side: what they share, ranks, risks and differences.

Rows are the same where their names are: a row may be tuned anew in every study, so its settings may
differ, but not its method. Decision 67.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autofedavg.report.differences import by_seed, shown_p
from autofedavg.report.ranks import (
    FEWEST,
    Friedman,
    alike,
    critical_difference,
    friedman,
    mean_ranks,
    ranks_of,
)
from autofedavg.report.repeats import Results, Row
from autofedavg.report.seed_gains import Gain, gain_over, verdict
from autofedavg.report.tables import mean_global

LISTED = 20  # names in a sentence
FEW_STUDIES, FEW_ROWS = 10, 5  # up to which the distribution behind Friedman's p is rough


@dataclass(frozen=True)
class Overview:
    """What several studies say together.

    Attributes:
        studies: what was read of each, by its name.
    """

    studies: Mapping[str, Results]

    @cached_property
    def compared(self) -> Mapping[str, Results]:
        """The studies that have a test score; trials and runs that have just begun have none."""
        return {
            name: results
            for name, results in self.studies.items()
            if any(mean_global(row) is not None for row in results.rows)
        }

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """Label in the first study -> the row in every study; only rows that all have scores of."""
        found: dict[str, list[Row]] = {}
        if len(self.compared) < 2:
            return found
        for row in next(iter(self.compared.values())).rows:
            same = [results.row(row.name) for results in self.compared.values()]
            known = [each for each in same if each and mean_global(each) is not None]
            if len(known) == len(same) and len({each.method["name"] for each in known}) == 1:
                found[row.label] = known
        return found

    @cached_property
    def scores(self) -> list[tuple[float, ...]]:
        """Study by study the scores of the shared rows in percent, mean over seeds."""
        columns = ([mean_global(row) or 0.0 for row in same] for same in self.rows.values())
        return list(zip(*columns, strict=True))

    @cached_property
    def ranks(self) -> list[list[float]]:
        """Study by study the ranks of the shared rows."""
        return ranks_of(self.scores)

    @cached_property
    def behind(self) -> dict[str, list[float]]:
        """Label -> study by study the points behind the best shared row; least far behind first."""
        columns = [[max(study) - score for score in study] for study in self.scores]
        found = zip(self.rows, map(list, zip(*columns, strict=True)), strict=True)
        return dict(sorted(found, key=lambda row: max(row[1])))

    @cached_property
    def ranking(self) -> dict[str, float]:
        """Label -> mean rank, the best first."""
        means = dict(zip(self.rows, mean_ranks(self.ranks), strict=True))
        return dict(sorted(means.items(), key=lambda mean: mean[1]))

    @cached_property
    def test(self) -> Friedman | None:
        """None with fewer than three studies or rows."""
        return friedman(self.ranks) if self.rows else None

    @cached_property
    def critical(self) -> float:
        """Mean ranks at least so far apart differ by Nemenyi's test."""
        return critical_difference(len(self.rows), len(self.compared))

    @property
    def groups(self) -> list[list[str]]:
        """The rows that Nemenyi's test does not tell apart, from the best on."""
        labels = list(self.ranking)
        ends = alike(list(self.ranking.values()), self.critical)
        return [labels[first : last + 1] for first, last in ends]

    @cached_property
    def baseline(self) -> str:
        """Label of the row that all studies are tested against; empty where there is none."""
        shared = {
            results.baseline_row.name if results.baseline_row else ""
            for results in self.compared.values()
        }
        found = [label for label, same in self.rows.items() if {same[0].name} == shared]
        return found[0] if found else ""

    @cached_property
    def gains(self) -> dict[str, list[list[float]]]:
        """Label -> study by study the differences from the baseline, over seeds."""
        if not self.baseline:
            return {}
        against = self.rows[self.baseline]
        return {
            label: [by_seed(row, base) for row, base in zip(same, against, strict=True)]
            for label, same in self.rows.items()
            if label != self.baseline
        }

    @cached_property
    def overall(self) -> dict[str, Gain]:
        """Label -> the mean over studies of the differences."""
        found = {label: gain_over(studies) for label, studies in self.gains.items()}
        return {label: gain for label, gain in found.items() if gain}

    @property
    def tested(self) -> list[str]:
        """Friedman's and Nemenyi's tests in words, or why there are none."""
        rows, studies = len(self.rows), len(self.compared)
        if self.test is None:
            return [
                f"Ranks of {rows} rows over {studies} studies mean little: Friedman's test and the "
                f"diagram need at least {FEWEST} of each and are left out."
            ]
        statistic, p = self.test
        rough = ""
        if studies <= FEW_STUDIES or rows <= FEW_ROWS:
            rough = " The chi-square approximation is rough for so few."
        first = next(iter(self.ranking))
        near = next((group for group in self.groups if first in group), [first])
        others = [label for label in self.rows if label not in near]
        return [
            f"Friedman's test of {rows} rows over {studies} studies: chi-square {statistic:.2f} "
            f"with {rows - 1} degrees of freedom, p {shown_p(p)}.{rough}",
            f"Nemenyi's critical difference at the 5 % level is {self.critical:.2f} ranks. Further "
            f"behind {first} than that: {'; '.join(others) or 'none'}.",
        ]

    @property
    def short(self) -> list[str]:
        """The studies together, in sentences."""
        names, rows = ", ".join(self.studies), len(self.rows)
        shared = "1 row" if rows == 1 else f"{rows} rows"
        said = [f"{len(self.studies)} studies: {names}. They share {shared} by name."]
        if len(self.rows) > 1:
            best = next(iter(self.ranking))
            said += [f"Best mean rank: {best}, {self.ranking[best]:.2f}.", *self.tested]
            safest, points = next(iter(self.behind.items()))
            said.append(f"Least risk: {safest} is at most {max(points):.2f} points behind the best "
                        "row of a study.")  # fmt: skip
        if self.gains:
            said.append(verdict(self.overall, self.baseline))
        return said if self.rows else said + self.left_out  # else a note of the table says it

    @property
    def left_out(self) -> list[str]:
        """Studies and rows that are not compared, and why."""
        untested = [name for name in self.studies if name not in self.compared]
        said = [f"Not compared, for want of a test score: {_few(untested)}."] if untested else []
        return said + _rows_left_out(self) if len(self.compared) > 1 else said


def _few(names: Sequence[str]) -> str:
    """Names in a sentence, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _rows_left_out(overview: Overview) -> list[str]:
    """Rows that are not in the overview, and why."""
    shared = {row.name for same in overview.rows.values() for row in same}
    methods: dict[str, set[str]] = {}
    for results in overview.compared.values():
        for row in results.rows:
            methods.setdefault(row.name, set()).add(str(row.method["name"]))
    other = {name: sorted(used) for name, used in methods.items() if len(used) > 1}
    absent = [name for name in methods if name not in shared and name not in other]
    said = []
    if absent:
        said.append(
            "Not in the overview, for want of a finished run with a global model in every study: "
            f"{_few(absent)}."
        )
    said += [
        f"Not in the overview: {name} is not one method in all studies ({', '.join(used)})."
        for name, used in other.items()
    ]
    return said
