"""Whether LearnAggWeight lowers its loss: the first steps of a call against the last ones."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from autofedavg.core.evaluation import loss_ends
from autofedavg.report.read import Repeat, Results, Row
from autofedavg.report.tables import Cell, Table


class Call(NamedTuple):
    """One call of LearnAggWeight: mean loss over sites, in its first and in its last steps."""

    seed: int
    fold: int | None
    t: int
    steps: int
    first: float
    last: float


def calls_of(row: Row) -> list[Call]:
    """The calls of a row's repeats; of a single step none, and folders of earlier versions none."""
    return [
        Call(repeat.seed, repeat.fold, int(line["t"]), *ends)
        for repeat in row.finished or row.repeats
        for line in repeat.rounds
        if (ends := loss_ends(line.get("learning_loss", {}), _counted(repeat)))
    ]


def learning_table(results: Results) -> Table | None:
    """A line for every row that learns its weights."""
    rows = []
    for row in results.rows:
        calls = calls_of(row)
        if not calls:
            continue
        first, last = (
            statistics.fmean(getattr(c, end) for c in calls) for end in ("first", "last")
        )
        lower = sum(call.last < call.first for call in calls)
        steps = statistics.fmean(call.steps for call in calls)
        cells = (Cell(steps, text=f"{steps:g}"), Cell(first), Cell(last), Cell(last - first))
        rows.append((row.label, (*cells, Cell(lower, text=f"{lower} of {len(calls)}"))))
    if not rows:
        return None
    heads = (
        "steps a call",
        "loss in first steps",
        "in last steps",
        "change",
        "calls that lower it",
    )
    notes = (
        "Loss of the averaged model on the batches that the weights are learned on, with the "
        "weights before each step (Dirichlet: with weights drawn from it); mean over sites (by "
        "n_k where the objective is), calls and repeats, in the first and the last quarter of a "
        "call's steps. Every step has batches of its own, so a single call may end higher by "
        "chance. With several steps a message, a message counts as one.",
    )
    title = "Loss that the weights are learned by"
    return Table("learning", title, heads, tuple(rows), notes, decimals=4)


def _counted(repeat: Repeat) -> dict[str, float] | None:
    """How much each site counts in what the repeat minimised."""
    if repeat.config["method"].get("objective") != "size":
        return None
    return {site: n["train"] for site, n in repeat.environment["data"]["cases"].items()}
