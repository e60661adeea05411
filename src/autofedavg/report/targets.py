"""Rounds, bytes and seconds until a row first reaches a target score. Decision 67."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from autofedavg.report.repeats import Repeat, Results, Row
from autofedavg.report.spent import Spent, spent_by
from autofedavg.report.tables import Cell, Table, table_of

SHARES = (90, 95, 99)  # percent of the baseline's last score, where no target is given
EQUAL = 9  # decimals of a percentage that count: 0.57 is 57 %, whatever binary fractions say
UNITS = ("rounds", "MB", "seconds")


class Reached(NamedTuple):
    """A seed after a round: its score in percent and what it has spent, means over folds."""

    t: int
    score: float
    spent: Spent


Track = Sequence[Reached]  # of one seed, by rounds


def targets_table(results: Results) -> Table | None:
    """A line per row: what it took to reach each target; None without a target or scores."""
    split = "test" if _all_tested(results) else "validation"
    tracks = {row.label: found for row in results.rows if (found := _tracks(row, split))}
    baseline = results.baseline_row
    last = [track[-1].score for track in tracks.get(baseline.label, ())] if baseline else []
    targets, rule = list(results.targets), "Targets were given."
    if not targets and baseline and last:
        score = statistics.fmean(last)
        targets = [score * share / 100 for share in SHARES]
        rule = (
            f"Targets: {', '.join(map(str, SHARES))} % of the score of {baseline.label} after its "
            f"last round, {score:.2f} %."
        )
    if not targets:
        return None
    rows = [
        (label, tuple(cell for target in targets for cell in _cells(found, target)))
        for label, found in tracks.items()
    ]
    heads = [f"{unit} to {target:.2f} %" for target in targets for unit in UNITS]
    return table_of("targets", "What it takes to reach a score", heads, rows, _notes(split, rule))


def _notes(split: str, rule: str) -> tuple[str, ...]:
    scored = "each round that was tested" if split == "test" else "each round"
    return (
        f"{rule} Score: mean over sites of the global model's {split} score after {scored}; the "
        "first round at or above a target counts.",
        *(("Test scores measure here; no model, round or setting is chosen by them.",)
          if split == "test" else ()),
        "Mean over seeds, in brackets the least and the greatest. Where some seeds do not reach a "
        "target, the mean is of those that do, and flatters.",
        "MB (1,000,000 bytes, all sites, both ways) and seconds are those of all calls up to that "
        "round but evaluating. Rows that ran while the machine did other work look slower.",
    )  # fmt: skip


def _all_tested(results: Results) -> bool:
    """Whether every run that validates or tests was tested in several rounds."""
    found = [
        [len(_curve(repeat, split)) for split in ("validation", "test")]
        for row in results.rows
        for repeat in row.counted
    ]
    return any(tested > 1 for _, tested in found) and all(
        tested > 1 for validated, tested in found if validated or tested
    )


def _curve(repeat: Repeat, split: str) -> dict[int, float]:
    """Round -> the global model's mean score on a split, in percent."""
    known = ((line["t"], line.get(split, {}).get("mean")) for line in repeat.rounds)
    return {t: round(100 * score, EQUAL) for t, score in known if score is not None}


def _tracks(row: Row, split: str) -> list[Track]:
    """The way of every seed, in the rounds that all its folds have."""
    seeds: dict[int, list[tuple[dict[int, float], dict[int, Spent]]]] = {}
    for repeat in row.counted:
        seeds.setdefault(repeat.seed, []).append((_curve(repeat, split), spent_by(repeat)))
    return [track for folds in seeds.values() if (track := _track(folds))]


def _track(folds: Sequence[tuple[Mapping[int, float], Mapping[int, Spent]]]) -> Track:
    shared = set.intersection(*({*curve} & {*spent} for curve, spent in folds))
    return [
        Reached(
            t,
            statistics.fmean(curve[t] for curve, _ in folds),
            Spent(*map(statistics.fmean, zip(*(spent[t] for _, spent in folds), strict=True))),
        )
        for t in sorted(shared)
    ]


def _cells(tracks: Sequence[Track], target: float) -> list[Cell]:
    """Rounds, MB and seconds to a target, over the seeds."""
    goal = round(target, EQUAL)
    firsts = [next((at for at in track if at.score >= goal), None) for track in tracks]
    found = [first for first in firsts if first]
    if not found:
        last = min(track[-1].t for track in tracks)
        return [Cell(text=f"not reached in {last} rounds"), *[Cell(text="not reached")] * 2]
    units: list[Callable[[Reached], float]] = [
        lambda at: at.t,
        lambda at: at.spent.megabytes,
        lambda at: at.spent.seconds,
    ]
    some = "" if len(found) == len(tracks) else f"{len(found)} of {len(tracks)} seeds: "
    cells = []
    for unit in units:
        values = [unit(at) for at in found]
        mean = statistics.fmean(values)
        cells.append(Cell(None if some else mean, text=f"{some}{_span(mean, values)}"))
    return cells


def _span(mean: float, values: Sequence[float]) -> str:
    """A mean, and the least and the greatest where they differ.

    Example:
        >>> _span(12.5, [12.0, 13.0]), _span(1234.5, [1234.5])
        ('12.5 (12 to 13)', '1,234')
    """
    shown = [_short(value) for value in (mean, min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
