"""Several studies side by side: scores, ranks, risks and differences of the rows that they share.

Rows are the same where their names are: a row may be tuned anew in every study, so its settings may
differ, but not its method. Decision 67.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from autofedavg.report.repeats import Results, Row, flat
from autofedavg.report.seed_gains import Gain, gain_over, holm, p_cell, verdict
from autofedavg.report.tables import Cell, Table, mark_best, mean_global, percent_cell, table_of

ALL = "all studies"
FEW_STUDIES, FEW_ROWS = 10, 5  # up to which the distribution behind Friedman's p is rough


@dataclass(frozen=True)
class Overview:
    """What several studies say together.

    Attributes:
        studies: what was read of each, by its name.
    """

    studies: Mapping[str, Results]

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """Label in the first study -> the row in every study; only rows that all have scores of."""
        found: dict[str, list[Row]] = {}
        for row in next(iter(self.studies.values())).rows:
            same = [results.row(row.name) for results in self.studies.values()]
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
        return critical_difference(len(self.rows), len(self.studies))

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
            for results in self.studies.values()
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

    @property
    def tables(self) -> list[Table]:
        """Those that have rows."""
        made = (_scores(self), _ranks(self), _risks(self), _gains(self))
        return [table for table in made if table]

    @property
    def short(self) -> list[str]:
        """The studies together, in sentences."""
        names = ", ".join(self.studies)
        said = [f"{len(self.studies)} studies: {names}. They share {len(self.rows)} rows by name."]
        if len(self.rows) > 1:
            best = next(iter(self.ranking))
            said += [f"Best mean rank: {best}, {self.ranking[best]:.2f}.", *_tested(self)]
            safest, points = next(iter(self.behind.items()))
            said.append(f"Least risk: {safest} is at most {max(points):.2f} points behind the best "
                        "row of a study.")  # fmt: skip
        if self.gains:
            said.append(verdict(_overall(self), self.baseline))
        return said if self.rows else said + _left_out(self)  # else a note of the table says it


def _scores(overview: Overview) -> Table | None:
    rows = [
        (label, tuple(percent_cell(s.global_test_avg for s in row.summaries) for row in same))
        for label, same in overview.rows.items()
    ]
    notes = ["Global test avg in percent, best per study marked; ± is the standard deviation over "
             "repeats (seeds).", *_left_out(overview), *_tuned(overview)]  # fmt: skip
    heads = list(overview.studies)
    return table_of("overview", "Scores over studies", heads, mark_best(rows), notes)


def _ranks(overview: Overview) -> Table | None:
    if len(overview.rows) < 2:
        return None
    by_label = dict(zip(overview.rows, zip(*overview.ranks, strict=True), strict=True))
    rows = [
        (label, (*(Cell(rank, text=f"{rank:g}") for rank in by_label[label]), Cell(mean)))
        for label, mean in overview.ranking.items()
    ]
    notes = [
        "Ranks by global test avg, mean over seeds; 1 is the highest, and equal scores share the "
        "mean of their ranks. The row with the lowest mean rank stands first.",
        *_tested(overview),
    ]
    heads = (*overview.studies, "mean rank")
    return table_of("ranks", "Ranks over studies", heads, rows, notes)


def _risks(overview: Overview) -> Table | None:
    if len(overview.rows) < 2:
        return None
    rows = [
        (label, tuple(Cell(points) for points in (*behind, max(behind))))
        for label, behind in overview.behind.items()
    ]
    notes = (
        "Points of global test avg behind the best of these rows in a study, mean over seeds. Last "
        "column: where they are most, which is what a row may cost those who do not know which "
        "study is like their federation. The row with the least stands first.",
        "The best of many rows is lucky, so these numbers are upper bounds.",
    )
    heads = (*overview.studies, "furthest behind")
    return table_of("risks", "Points behind the best row", heads, rows, notes)


def _gains(overview: Overview) -> Table | None:
    if not overview.gains:
        return None
    overall = _overall(overview)
    sure, rows = holm(overall), []
    for label, studies in overview.gains.items():
        found = [gain_over([gains]) for gains in studies] + [overall.get(label)]
        cells = [Cell(gain.mean, text=str(gain)) if gain else Cell() for gain in found]
        test = overall[label].interval if label in overall else None
        tests = (p_cell(test.p), p_cell(sure[label])) if test else (Cell(), Cell())
        rows.append((label, (*cells, *tests)))
    notes = (
        f"Global test avg of a row minus that of {overview.baseline} with the same seed, in "
        "points: mean over seeds, in brackets Student's 95 % interval. Without an interval: one "
        "seed.",
        "All studies: mean over studies, each counting equally. Interval and p (two-sided t-test, "
        "degrees of freedom by Welch and Satterthwaite) are about other seeds of these studies, "
        "not about other studies. Holm: corrected for all rows.",
        verdict(overall, overview.baseline),
    )
    heads = (*overview.studies, ALL, "p", "p (Holm)")
    return table_of("gains", f"Differences from {overview.baseline} over seeds", heads, rows, notes)


def _overall(overview: Overview) -> dict[str, Gain]:
    """Label -> the mean over studies of the differences."""
    found = {label: gain_over(studies) for label, studies in overview.gains.items()}
    return {label: gain for label, gain in found.items() if gain}


def _tested(overview: Overview) -> list[str]:
    """Friedman's and Nemenyi's tests in words, or why there are none."""
    rows, studies = len(overview.rows), len(overview.studies)
    if overview.test is None:
        return [
            f"Ranks of {rows} rows over {studies} studies mean little: Friedman's test and the "
            f"diagram need at least {FEWEST} of each and are left out."
        ]
    statistic, p = overview.test
    rough = ""
    if studies <= FEW_STUDIES or rows <= FEW_ROWS:
        rough = " The chi-square approximation is rough for so few."
    first = next(iter(overview.ranking))
    near = next((group for group in overview.groups if first in group), [first])
    others = [label for label in overview.rows if label not in near]
    return [
        f"Friedman's test of {rows} rows over {studies} studies: chi-square {statistic:.2f} with "
        f"{rows - 1} degrees of freedom, p {shown_p(p)}.{rough}",
        f"Nemenyi's critical difference at the 5 % level is {overview.critical:.2f} ranks. Further "
        f"behind {first} than that: {'; '.join(others) or 'none'}.",
    ]


def _left_out(overview: Overview) -> list[str]:
    """Rows that are not in the overview, and why."""
    shared = {row.name for same in overview.rows.values() for row in same}
    methods: dict[str, set[str]] = {}
    for results in overview.studies.values():
        for row in results.rows:
            methods.setdefault(row.name, set()).add(str(row.method["name"]))
    other = {name: sorted(used) for name, used in methods.items() if len(used) > 1}
    absent = [name for name in methods if name not in shared and name not in other]
    said = []
    if absent:
        said.append(
            "Not in the overview, for want of a finished run with a global model in every study: "
            f"{', '.join(absent)}."
        )
    said += [
        f"Not in the overview: {name} is not one method in all studies ({', '.join(used)})."
        for name, used in other.items()
    ]
    return said


def _tuned(overview: Overview) -> list[str]:
    """The shared rows whose method's settings differ between studies."""
    said = []
    for label, same in overview.rows.items():
        values = [dict(flat(row.method)) for row in same]
        paths = [
            path
            for path in dict.fromkeys(path for each in values for path in each)
            # A run of an earlier version lacks settings that were added since.
            if any(a[path] != b[path] for a in values for b in values if path in a and path in b)
        ]
        said += [f"{label} (method.{', method.'.join(paths)})"] if paths else []
    return [f"Settings that differ between studies: {'; '.join(said)}."] if said else []
