"""The score of every class, for tasks with several."""

from __future__ import annotations

from autofedavg.core.evaluation import summarise
from autofedavg.report.read import Results, Row
from autofedavg.report.tables import Cell, Table, mark_best, percent_cell


def classes_table(results: Results) -> Table | None:
    """Mean over sites of the global model's test score per class; None with a single class."""
    found = sorted(
        {
            tested.metric
            for row in results.rows
            for scores in row.whole.values()
            for tested, _ in scores.columns()
            if tested.metric.startswith(f"{row.metric}:")
        }
    )
    if not found:
        return None
    rows = [(row.label, tuple(_cell(row, metric) for metric in found)) for row in results.rows]
    rows = [
        (label, cells) for label, cells in rows if any(cell.value is not None for cell in cells)
    ]
    heads = tuple(metric.partition(":")[2] for metric in found)
    metrics = ", ".join(sorted({metric.partition(":")[0] for metric in found}))
    notes = (f"{metrics} of the global model per class, mean over sites, in percent.",)
    return Table("classes", "Classes", heads, mark_best(rows), notes)


def _cell(row: Row, metric: str) -> Cell:
    return percent_cell(summarise(scores, metric).global_test_avg for scores in row.whole.values())
