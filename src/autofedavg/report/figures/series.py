"""What was measured over the rounds: as plain tables, one row per number, and as states."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autofedavg.report.figures.vega import SLIDER, Data
from autofedavg.report.repeats import Repeat, Results, Row, seed_and_fold
from autofedavg.report.tables import mean_over_layers

State = Mapping[str, Any]
CHOSEN = (0.0, 0.1, 1 / 6, 1.0)  # of T: the paper shows rounds 0, 30, 50 and 300 of 300
MOST_STATES = 60  # states behind a slider; rounds between two show the earlier one
NOW = f"datum.t <= {SLIDER} && {SLIDER} < datum.until"  # filters the state a slider is at


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


def dirichlet(row: Row) -> bool:
    """Whether the row draws its weights from a Dirichlet."""
    return bool(row.method.get("constraint") == "dirichlet")


def states_of(row: Row, K: int) -> list[State]:
    """Round, alpha (K, or K times P) and beta (only a Dirichlet's), from round 0 on."""
    start = _start(row, K)
    return [
        {"t": line["t"], "alpha": line["alpha"], "beta": line["beta"] if dirichlet(row) else None}
        for line in [start, *(line for line in first(row).rounds if line["alpha"])]
    ]


def _start(row: Row, K: int) -> State:
    """Alpha and beta before the first step."""
    beta0 = float(row.method.get("beta0", 6.0))
    if row.method.get("start") != "sizes":
        return {"t": 0, "alpha": [1 / K] * K, "beta": [beta0] * K}
    cases = first(row).environment["data"]["cases"]
    n_k = [cases[site]["train"] for site in sorted(cases)]
    alpha = [n / sum(n_k) for n in n_k]
    return {"t": 0, "alpha": alpha, "beta": [1 + K * (beta0 - 1) * share for share in alpha]}


def behind_slider(states: Sequence[State]) -> list[State]:
    """Those a slider goes through, each with the round until which it is shown."""
    last = len(states) - 1
    stride = -(-len(states) // MOST_STATES)
    kept = sorted({*range(0, len(states), stride), last, *_chosen(last)})
    ends = [*(states[place]["t"] for place in kept[1:]), states[last]["t"] + 1]
    return [{**states[place], "until": end} for place, end in zip(kept, ends, strict=True)]


def steps(states: Sequence[State]) -> str:
    """What a caption says of a slider that does not stop at every round."""
    stride = -(-len(states) // MOST_STATES)
    return "" if stride == 1 else f" The slider shows the state of every {stride} rounds."


def on_paper(states: Sequence[State]) -> list[int]:
    """The rounds that a still picture shows."""
    return [states[place]["t"] for place in _chosen(len(states) - 1)]


def words_of(state: State) -> str:
    """A state in words: its beta, or its alpha where there is no distribution."""
    for name in ("beta", "alpha"):
        values = state[name]
        if values is not None and not nested(values):
            return f"round {state['t']}: {name} = ({', '.join(f'{x:.2f}' for x in values)})"
    return f"round {state['t']}, {len(state['alpha'][0])} layers"


def nested(values: Sequence[Any]) -> bool:
    """Whether there is a list per site: layer-wise."""
    return any(isinstance(value, list) for value in values)


def _chosen(last: int) -> list[int]:
    return sorted({round(share * last) for share in CHOSEN})
