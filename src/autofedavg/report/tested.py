"""Test scores over the rounds, for runs that were tested as they went: last, best, on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autofedavg.report.read import Repeat, Results, Row
from autofedavg.report.tables import Cell, Table, mark_best, percent_cell, round_cell

NOTE = (
    "Mean over sites of the global model's test score. The best round is chosen by the test cases "
    "themselves, so its score flatters; it is here because others print it."
)
WAY = (1, 2, 3, 5, 7, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # rounds that are shown

Curve = Sequence[tuple[int, float]]  # (round, test score)


def tested_table(results: Results) -> Table | None:
    """Test score when last tested, and the best one; None where no run was tested so often."""
    rows = [(row.label, _cells(row)) for row in results.rows if _curves(row)]
    if not rows:
        return None
    heads = ("last test", "best test", "best in round")
    return Table("tested", "Test scores over the rounds", heads, tuple(rows), (NOTE,))


def rounds_table(results: Results) -> Table | None:
    """Test score after one, two, three, five ... rounds; None where no run was tested so often."""
    found = {row.label: on_the_way(row, WAY) for row in results.rows}
    shown = [t for t in WAY if any(t in scores for scores in found.values())]
    rows = [
        (label, tuple(percent_cell(scores.get(t, ())) for t in shown))
        for label, scores in found.items()
        if scores
    ]
    if not rows:
        return None
    note = (
        "Mean over sites of the global model's test score; best per column marked. Nothing is "
        "chosen by it. A cell is empty where not all repeats of its row were tested in that round."
    )
    heads = tuple(map(str, shown))
    return Table("rounds", "Test score after so many rounds", heads, mark_best(rows), (note,))


def on_the_way(row: Row, rounds: Iterable[int]) -> dict[int, list[float]]:
    """Round -> test score of every seed, of these rounds those where all folds were tested.

    Nothing where a row was tested once.
    """
    seeds = [[dict(curve) for curve in mine] for mine in _curves(row).values()]
    every = [curve for mine in seeds for curve in mine]
    if not any(len(curve) > 1 for curve in every):
        return {}
    return {
        t: [sum(curve[t] for curve in mine) / len(mine) for mine in seeds]
        for t in rounds
        if all(t in curve for curve in every)
    }


def _cells(row: Row) -> tuple[Cell, ...]:
    def last(curve: Curve) -> float:
        return curve[-1][1]

    def best(curve: Curve) -> float:
        return max(score for _, score in curve)

    def when(curve: Curve) -> float:
        return next(t for t, score in curve if score == best(curve))

    return (
        percent_cell(_per_seed(row, last)),
        percent_cell(_per_seed(row, best)),
        round_cell(_per_seed(row, when)),
    )


def _per_seed(row: Row, of: Callable[[Curve], float]) -> list[float]:
    """A number of every seed's curve; of several folds, their mean."""
    curves = _curves(row)
    return [sum(map(of, mine)) / len(mine) for mine in curves.values()]


def _curves(row: Row) -> dict[int, list[Curve]]:
    """Seed -> (round, test score) of every fold; only seeds that have all folds."""
    found: dict[int, list[Curve]] = {}
    for repeat in row.finished:
        curve = _curve(repeat)
        if repeat.seed in row.whole and curve:
            found.setdefault(repeat.seed, []).append(curve)
    return found


def _curve(repeat: Repeat) -> Curve:
    tested = [(line["t"], line.get("test", {}).get("mean")) for line in repeat.rounds]
    return [(t, score) for t, score in tested if score is not None]
