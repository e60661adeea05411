"""Tables of what happened over the rounds: test scores, the loss of learning, events of sites."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from autofedavg.core.evaluation import loss_ends
from autofedavg.report.repeats import Repeat, Results, Row
from autofedavg.report.tables import Cell, Table, mark_best, mean_cell, percent_cell, table_of

WAY = (1, 2, 3, 5, 7, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # rounds that are shown
KINDS = {  # kind of event: its column
    "lost": "lost",
    "dropped": "dropped",
    "retried": "asked again",
    "resent": "sent again",
    "returned": "returned",
    "clipped": "clipped",
    "outlying": "far off",
}
RARE = {  # these have a column only where there are any: what they mean
    "clipped": "Clipped: its step on beta was far longer than the others', and did not count.",
    "outlying": "Far off: its model had moved much further than the others'.",
}

Curve = Sequence[tuple[int, float]]  # (round, test score)


def tested_table(results: Results) -> Table | None:
    """Test score when last tested, and the best one; None where no run was tested so often."""
    rows = []
    for row in results.rows:
        seeds = list(_curves(row).values())
        last = [_mean(curve[-1][1] for curve in mine) for mine in seeds]
        best = [_mean(_best(curve)[1] for curve in mine) for mine in seeds]
        when = [_mean(_best(curve)[0] for curve in mine) for mine in seeds]
        if seeds:
            found = mean_cell(when)
            found = replace(found, text=f"{found.value:.0f}")
            rows.append((row.label, (percent_cell(last), percent_cell(best), found)))
    heads = ("last test", "best test", "best in round")
    note = (
        "Mean over sites of the global model's test score. The best round is chosen by the test "
        "cases themselves, so its score flatters; it is here because others print it."
    )
    return table_of("tested", "Test scores over the rounds", heads, rows, (note,))


def rounds_table(results: Results) -> Table | None:
    """Test score after 1, 2, 3, 5 ... rounds and the last; None where none was tested so often."""
    curves = (curve for row in results.rows for mine in _curves(row).values() for curve in mine)
    way = sorted({*WAY, max((curve[-1][0] for curve in curves), default=1)})
    found = {row.label: on_the_way(row, way) for row in results.rows}
    shown = [t for t in way if any(t in scores for scores in found.values())]
    rows = [
        (label, tuple(percent_cell(scores.get(t, ())) for t in shown))
        for label, scores in found.items()
        if scores
    ]
    note = (
        "Mean over sites of the global model's test score; best per column marked. Nothing is "
        "chosen by it. A cell is empty where not all repeats of its row were tested in that round."
    )
    title = "Test score after so many rounds"
    return table_of("rounds", title, [str(t) for t in shown], mark_best(rows), (note,))


def on_the_way(row: Row, rounds: Iterable[int]) -> dict[int, list[float]]:
    """Round -> test score of every seed, of these rounds those where all folds were tested.

    Nothing where a row was tested once.
    """
    seeds = [[dict(curve) for curve in mine] for mine in _curves(row).values()]
    every = [curve for mine in seeds for curve in mine]
    if not any(len(curve) > 1 for curve in every):
        return {}
    return {
        t: [_mean(curve[t] for curve in mine) for mine in seeds]
        for t in rounds
        if all(t in curve for curve in every)
    }


def _best(curve: Curve) -> tuple[int, float]:
    """The first round of the highest test score."""
    return max(curve, key=lambda tested: tested[1])


def _mean(values: Iterable[float]) -> float:
    """Of a seed's folds."""
    known = list(values)
    return sum(known) / len(known)


def _curves(row: Row) -> dict[int, list[Curve]]:
    """Seed -> (round, test score) of every fold; only seeds that have all folds."""
    found: dict[int, list[Curve]] = {}
    for repeat in row.counted:
        tested = [(line["t"], line.get("test", {}).get("mean")) for line in repeat.rounds]
        curve = [(t, score) for t, score in tested if score is not None]
        if curve:
            found.setdefault(repeat.seed, []).append(curve)
    return found


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
    """Whether LearnAggWeight lowers its loss: a line for every row that learns its weights."""
    rows = []
    for row in results.rows:
        if calls := calls_of(row):
            first = statistics.fmean(call.first for call in calls)
            last = statistics.fmean(call.last for call in calls)
            lower = sum(call.last < call.first for call in calls)
            steps = statistics.fmean(call.steps for call in calls)
            cells = (Cell(steps, text=f"{steps:g}"), Cell(first), Cell(last), Cell(last - first))
            rows.append((row.label, (*cells, Cell(lower, text=f"{lower} of {len(calls)}"))))
    ends = ("loss in first steps", "in last steps", "change")
    notes = (
        "Loss of the averaged model on the batches that the weights are learned on, with the "
        "weights before each step (Dirichlet: with weights drawn from it); mean over sites (by "
        "n_k where the objective is), calls and repeats, in the first and the last quarter of a "
        "call's steps. Every step has batches of its own, so a single call may end higher by "
        "chance. With several steps a message, a message counts as one.",
    )
    title, heads = "Loss that the weights are learned by", ("steps a call", *ends)
    return table_of("learning", title, (*heads, "calls that lower it"), rows, notes, decimals=4)


def _counted(repeat: Repeat) -> dict[str, float] | None:
    """How much each site counts in what the repeat minimised."""
    if repeat.method.get("objective") != "size":
        return None
    return {site: n["train"] for site, n in repeat.environment["data"]["cases"].items()}


def events_table(results: Results) -> Table | None:
    """How often what happened to which site, and in which rounds."""
    counts: dict[str, Counter[str]] = {}
    rounds: dict[str, set[int]] = {}
    for row in results.rows:
        events = [
            (int(line["t"]), str(event["site"]), str(event["what"]))
            for repeat in row.repeats
            for line in repeat.rounds
            for event in line.get("events") or []  # folders of earlier versions have none
        ]
        for t, site, what in sorted(events, key=lambda event: event[1]):
            counts.setdefault(f"{row.label} - {site}", Counter())[what] += 1
            rounds.setdefault(f"{row.label} - {site}", set()).add(t)
    seen = {what for mine in counts.values() for what in mine}
    kinds = {kind: head for kind, head in KINDS.items() if kind in seen or kind not in RARE}
    rows = []
    for label, mine in counts.items():
        numbers = (*(mine[kind] for kind in kinds), len(rounds[label]))
        rows.append((label, tuple(Cell(float(number)) for number in numbers)))
    notes = (
        "Events of all repeats. Lost: gave no answer, and was left out of that call. Dropped: its "
        "answer could not be used. Asked again: within a call, after no answer. Sent again: models "
        "that it had lost. Returned: answered after it was lost or dropped. Rounds: those in which "
        "any of it happened. Reasons are in rounds.jsonl.",
        *(meaning for kind, meaning in RARE.items() if kind in seen),
    )
    heads = (*kinds.values(), "rounds")
    return table_of("events", "Lost and returning sites", heads, rows, notes, decimals=0)
