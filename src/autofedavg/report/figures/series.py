"""What was measured over the rounds, as plain tables: one row per number."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from autofedavg.report.figures.vega import Data
from autofedavg.report.repeats import Repeat, Results, Row, seed_and_fold
from autofedavg.report.tables import mean_over_layers


def layer_wise(row: Row) -> bool:
    """Whether the row has a weight per layer."""
    return any(isinstance(a, list) for line in first(row).rounds[-1:] for a in line["alpha"] or [])


def first(row: Row) -> Repeat:
    """The repeat that stands for a row where only one can be drawn: the lowest seed."""
    begun = [repeat for repeat in row.repeats if repeat.rounds]
    return min(begun or row.repeats, key=lambda repeat: (repeat.seed, repeat.fold or 0))


def whose(row: Row) -> str:
    """What a caption says of that repeat; nothing when there is only one."""
    return f" From {seed_and_fold(first(row))}." if len(row.repeats) > 1 else ""


def alpha_series(results: Results, row: Row) -> Data:
    """Alpha of every site after every round; the mean over layers where there are several."""
    return [
        {**place, "site": site, "alpha": mean_over_layers(value)}
        for place, line in _lines(row)
        if line["alpha"]
        for site, value in zip(results.sites, line["alpha"], strict=True)
    ]


def score_series(row: Row, split: str) -> Data:
    """The global model's mean score on a split, in percent, after every round that has one."""
    return [
        {**place, "score": 100 * line[split]["mean"]}
        for place, line in _lines(row)
        if line.get(split, {}).get("mean") is not None
    ]


def loss_series(row: Row) -> Data:
    """Every site's mean training loss of every round."""
    return [
        {**place, "site": site, "loss": value}
        for place, line in _lines(row)
        for site, value in line.get("loss", {}).items()
    ]


def means(data: Data, value: str, *keys: str) -> Data:
    """Mean over repeats, with the least and the greatest, where every repeat has the round."""
    repeats: dict[str, set[tuple[Any, Any]]] = {}
    groups: dict[tuple[Any, ...], list[float]] = {}
    for item in data:
        repeats.setdefault(item["row"], set()).add((item["seed"], item["fold"]))
        group = tuple(item[key] for key in ("row", "t", *keys))
        groups.setdefault(group, []).append(item[value])
    return [
        {
            **dict(zip(("row", "t", *keys), group, strict=True)),
            value: statistics.fmean(found),
            "least": min(found),
            "greatest": max(found),
            "repeats": len(found),
        }
        for group, found in groups.items()
        if len(found) == len(repeats[group[0]])
    ]


def last_of(drawn: Data) -> dict[str, dict[str, Any]]:
    """Row -> what is drawn of its last round."""
    return {item["row"]: item for item in sorted(drawn, key=lambda item: item["t"])}


def _lines(row: Row) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for repeat in row.finished or row.repeats:  # one that failed does not cut the others short
        for line in repeat.rounds:
            place = {"row": row.label, "seed": repeat.seed, "fold": repeat.fold, "t": line["t"]}
            yield place, line
