"""How the weights and their distribution stood, from round 0 on; and a slider through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autofedavg.report.figures import vega
from autofedavg.report.figures.series import first
from autofedavg.report.repeats import Row

State = Mapping[str, Any]
CHOSEN = (0.0, 0.1, 1 / 6, 1.0)  # of T: the paper shows rounds 0, 30, 50 and 300 of 300
MOST_STATES = 60  # states behind a slider; rounds between two show the earlier one
NOW = (
    f"datum.t <= {vega.SLIDER} && {vega.SLIDER} < datum.until"  # filters the state the slider is at
)


def dirichlet(row: Row) -> bool:
    """Whether the row draws its weights from a Dirichlet."""
    return bool(row.method.get("constraint") == "dirichlet")


def states_of(row: Row, K: int) -> list[State]:
    """Round, alpha (K, or K times P) and beta (only a Dirichlet's), from round 0 on."""
    start = {"t": 0, "alpha": [1 / K] * K, "beta": [float(row.method.get("beta0", 6.0))] * K}
    return [
        {"t": line["t"], "alpha": line["alpha"], "beta": line["beta"] if dirichlet(row) else None}
        for line in [start, *(line for line in first(row).rounds if line["alpha"])]
    ]


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
