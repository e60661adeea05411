"""Test scores over the rounds, for runs that were tested as they went: the last and the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autofedavg.report.read import Repeat, Results, Row
from autofedavg.report.tables import Cell, Table, percent_cell, round_cell

NOTE = (
    "Mean over sites of the global model's test score. The best round is chosen by the test cases "
    "themselves, so its score flatters; it is here because others print it."
)


def tested_table(results: Results) -> Table | None:
    """Test score when last tested, and the best one; None where no run was tested so often."""
    rows = [(row.label, _cells(row)) for row in results.rows if _curves(row)]
    if not rows:
        return None
    heads = ("last test", "best test", "best in round")
    return Table("tested", "Test scores over the rounds", heads, tuple(rows), (NOTE,))


def _cells(row: Row) -> tuple[Cell, ...]:
    def last(curve: Sequence[tuple[int, float]]) -> float:
        return curve[-1][1]

    def best(curve: Sequence[tuple[int, float]]) -> float:
        return max(score for _, score in curve)

    def when(curve: Sequence[tuple[int, float]]) -> float:
        return next(t for t, score in curve if score == best(curve))

    return (
        percent_cell(_per_seed(row, last)),
        percent_cell(_per_seed(row, best)),
        round_cell(_per_seed(row, when)),
    )


def _per_seed(row: Row, of: Callable[[Sequence[tuple[int, float]]], float]) -> list[float]:
    """A number of every seed's curve; of several folds, their mean."""
    curves = _curves(row)
    return [sum(map(of, mine)) / len(mine) for mine in curves.values()]


def _curves(row: Row) -> dict[int, list[list[tuple[int, float]]]]:
    """Seed -> (round, test score) of every fold; only seeds that have all folds."""
    found: dict[int, list[list[tuple[int, float]]]] = {}
    for repeat in row.finished:
        curve = _curve(repeat)
        if repeat.seed in row.whole and curve:
            found.setdefault(repeat.seed, []).append(curve)
    return found


def _curve(repeat: Repeat) -> list[tuple[int, float]]:
    tested = [(line["t"], line.get("test", {}).get("mean")) for line in repeat.rounds]
    return [(t, score) for t, score in tested if score is not None]
