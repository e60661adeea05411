"""The scores behind every number of a report: per case, and per class of a task with several."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from autofedavg.core.evaluation import case_means, summarise
from autofedavg.core.scores import MeanRow, ScoreRow
from autofedavg.report.formats import to_sheet
from autofedavg.report.repeats import Results, Row
from autofedavg.report.tables import Table, mark_best, percent_cell

MOST_IN_PAGE = 12_000  # numbers; more are linked as files


@dataclass(frozen=True)
class CaseTable:
    """One row's cases: every model's test score, mean over the repeats.

    Attributes:
        models: "global", "local-<site>", ... in order.
        lines: (site, case, scores in percent, one per model; None where it was not tested); empty
            where sites disclosed means alone.
    """

    row: Row
    models: tuple[str, ...]
    lines: tuple[tuple[str, str, tuple[float | None, ...]], ...]

    @property
    def numbers(self) -> int:
        return len(self.lines) * len(self.models)


def case_tables(results: Results) -> list[CaseTable]:
    """A table for every row that has finished repeats."""
    made = []
    for row in results.rows:
        whole = list(row.whole.values())
        found = {tested.model for scores in whole for tested in scores.groups}
        models = tuple(sorted(found, key=lambda model: (not model.startswith("global"), model)))
        means = [case_means(whole, row.metric, model) for model in models]
        lines = tuple(
            (*key, tuple(100 * known[key] if key in known else None for known in means))
            for key in sorted({key for known in means for key in known})
        )
        if lines or row.by_means:
            made.append(CaseTable(row, models, lines))
    return made


def case_file(row: Row) -> str:
    """All test scores of a row as CSV, seed by seed and case by case, or site by site."""
    heads = MeanRow._fields if row.by_means else ScoreRow._fields
    lines = ([seed, *score] for seed, scores in row.whole.items() for score in scores)
    return to_sheet(chain([["seed", *heads]], lines))


def classes_table(results: Results) -> Table | None:
    """Mean over sites of the global model's test score per class; None with a single class."""
    found = sorted(
        {
            tested.metric
            for row in results.rows
            for scores in row.whole.values()
            for tested in scores.groups
            if tested.metric.startswith(f"{row.metric}:")
        }
    )
    if not found:
        return None
    rows = []
    for row in results.rows:
        cells = tuple(
            percent_cell(summarise(scores, metric).global_test_avg for scores in row.whole.values())
            for metric in found
        )
        if any(cell.value is not None for cell in cells):
            rows.append((row.label, cells))
    heads = tuple(metric.partition(":")[2] for metric in found)
    metrics = ", ".join(sorted({metric.partition(":")[0] for metric in found}))
    notes = (f"{metrics} of the global model per class, mean over sites, in percent.",)
    return Table("classes", "Classes", heads, mark_best(rows), notes)
