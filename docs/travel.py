"""The table of how models travel: rows in fewer bytes next to the float32 rows of another study."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from autofedavg.report.over_rounds import on_the_way
from autofedavg.report.repeats import Results, Row
from autofedavg.report.spent import spent_by
from autofedavg.report.tables import Cell, Table

HOW = ("bfloat16", "difference")
HEADS = ("MB sent", "% of float32", "test score", "points from float32", "between seeds")


def beside(study: Results, exact: Results) -> Results:
    """Every method's rows, the one in float32 first: the seeds and rounds that all have.

    Args:
        study: has rows METHOD-ENCODING.
        exact: has a row METHOD each, of as many rounds or more, in float32.
    """
    rows: list[Row] = []
    for name in dict.fromkeys(row.name.rpartition("-")[0] for row in study.rows):
        lossy = [row for how in HOW if (row := study.row(f"{name}-{how}"))]
        whole = exact.row(name)
        if whole is None:
            raise ValueError(f"no row {name} in float32")
        label, T = lossy[0].label.partition(",")[0], rounds_of(lossy[0])
        runs = tuple(
            replace(run, rounds=run.rounds[:T])
            for run in whole.repeats
            if run.seed in lossy[0].whole
        )
        rows += [replace(whole, label=f"{label}, float32", repeats=runs), *lossy]
    return replace(study, rows=tuple(rows))


def travel_table(study: Results, exact: Results) -> Table:
    """Bytes and scores of every encoding, and how far it is from float32 with the same seed."""
    rows, whole = [], None
    for row in beside(study, exact).rows:
        T, found, apart, spread = rounds_of(row), scores(row, rounds_of(row)), Cell(), Cell()
        if base := exact.row(row.name):
            whole = row
            spread = Cell(statistics.stdev(scores(base, T).values()))
        elif whole:
            points = [found[seed] - known for seed, known in scores(whole, T).items()]
            apart = Cell(points[0], text=", ".join(f"{point:+.2f}" for point in points))
        sent = megabytes(row, T)
        share = Cell(100 * sent / megabytes(whole or row, T))
        mean = Cell(statistics.fmean(found.values()))
        rows.append((row.label, (Cell(sent, text=f"{sent:,.0f}"), share, mean, apart, spread)))
    seeds = " and ".join(map(str, found))
    notes = (
        "MB (1,000,000 bytes) of a run, all sites, both ways, without evaluating. Score: global "
        f"test avg, in percent; seed {seeds}. Points: of each seed. Between seeds: standard "
        "deviation of the float32 row over three seeds.",
        "The float32 rows are earlier runs with the same settings, up to the same round.",
    )
    return Table("travel", study.title, HEADS, tuple(rows), notes)


def rounds_of(row: Row) -> int:
    return len(row.finished[0].rounds)


def megabytes(row: Row, T: int) -> float:
    """Mean MB of a row's runs up to round T."""
    return statistics.fmean(spent_by(repeat)[T].megabytes for repeat in row.finished)


def scores(row: Row, T: int) -> dict[int, float]:
    """Seed -> test score after round T, or of the selected model where rounds are not tested."""
    tested: Sequence[float | None] = on_the_way(row, [T]).get(T, ())
    found = tested or [summary.global_test_avg for summary in row.summaries]
    return {seed: 100 * (score or 0.0) for seed, score in zip(row.whole, found, strict=True)}
