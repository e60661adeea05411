"""Which calls of LearnAggWeight paid, where `t0 = "auto"` decides when it is called."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from autofedavg.report.repeats import Results, Row
from autofedavg.report.tables import Cell, Table, table_of


class JudgedCall(NamedTuple):
    """One call: how much it lowered the loss, and whether that is more than noise.

    Attributes:
        to_sizes: whether the weights became n_k/n after it.
    """

    seed: int
    fold: int | None
    t: int
    gain: float
    error: float
    paid: bool
    to_sizes: bool


def judged_calls(row: Row) -> list[JudgedCall]:
    """The calls of a row's repeats, by round; none where t0 is a number."""
    return [
        JudgedCall(
            repeat.seed,
            repeat.fold,
            int(line["t"]),
            told["gain"],
            told["error"],
            told["paid"],
            told.get("to_sizes", False),
        )
        for repeat in row.finished or row.repeats
        for line in repeat.rounds
        if (told := line.get("verdict"))
    ]


def paying_table(results: Results) -> Table | None:
    """How many calls there were, how many paid, and until when."""
    rows = []
    for row in results.rows:
        if calls := judged_calls(row):
            repeats = row.finished or row.repeats
            rounds = sum(len(repeat.rounds) for repeat in repeats)
            paid = [call for call in calls if call.paid]
            share, gain = len(calls) / rounds, statistics.fmean(call.gain for call in calls)
            back = sum(call.to_sizes for call in calls)
            cells = (
                Cell(len(calls), text=f"{len(calls)} in {rounds} rounds"),
                Cell(100 * share, text=f"{100 * share:.0f} %"),
                Cell(len(paid), text=f"{len(paid)} of {len(calls)}"),
                Cell(gain, text=f"{gain:.2g}"),
                _last(paid),
                Cell(back, text=str(back)),
            )
            rows.append((row.label, cells))
    heads = ("calls", "of t0 = 1", "that paid", "mean gain", "last that paid", "back to sizes")
    notes = (
        "A call paid if its weights lower the sites' loss by more than two standard errors, on "
        "batches that no step was taken on; learned blindly, to first order. After one that did "
        "not, the weights before it stay, or become n_k/n. All repeats together; the last that "
        "paid: latest round of any.",
    )
    return table_of("paying", "Calls of LearnAggWeight that paid", heads, rows, notes)


def _last(paid: list[JudgedCall]) -> Cell:
    """The latest round whose call paid."""
    if not paid:
        return Cell(text="none")
    t = max(call.t for call in paid)
    return Cell(t, text=f"round {t}")
