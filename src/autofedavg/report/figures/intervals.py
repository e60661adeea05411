"""Weights of any number of sites with the intervals their Dirichlet gives them (Figure 3c)."""

from __future__ import annotations

from collections.abc import Sequence

from autofedavg.report.figures.dirichlet import marginal_intervals
from autofedavg.report.figures.figure import COLOURS, Data, Figure, Spec, slider, tooltip
from autofedavg.report.figures.series import which
from autofedavg.report.figures.states import (
    NOW,
    State,
    behind_slider,
    on_paper,
    states_of,
    steps,
)
from autofedavg.report.read import Row
from autofedavg.report.values import stem


def intervals(row: Row, sites: Sequence[str], said: str) -> Figure:
    """Every site's weight with its intervals, with a slider; on paper, panels."""
    every = states_of(row, len(sites))
    table = _table(sites, every)
    shown = {state["t"]: state["until"] for state in behind_slider(every)}
    drawn = [{**item, "until": shown[item["t"]]} for item in table if item["t"] in shown]
    tips = tooltip(("site", ""), ("alpha", ".3f"), ("beta", ".3f"), ("low", ".3f"), ("high", ".3f"))
    rounds = on_paper(every)
    bars = _bars(sites, tips)
    spec: Spec = {
        "data": {"values": drawn},
        "params": [slider(0, every[-1]["t"])],
        "transform": [{"filter": NOW}],
        "width": 420,
        "height": {"step": 20},
        "layer": bars,
    }
    still: Spec = {
        "data": {"values": [item for item in table if item["t"] in rounds]},
        "columns": 2,
        "facet": {"field": "t", "type": "ordinal", "title": "round"},
        "spec": {"width": 230, "height": {"step": 16}, "layer": bars},
    }
    seed = which(row)
    return Figure(
        f"simplex-{stem(row.name)}",
        f"Distribution of the weights: {row.label} (Figure 3c)",
        "Per site: the weight that averages the models (dot), and where the Dirichlet holds half "
        "(thick) and nine tenths (thin) of the weights it draws."
        + (f" From {seed}." if seed else "")
        + steps(every)
        + said,
        [{"row": row.label, **item} for item in table],
        spec,
        still,
        f"{row.label}, last round: "
        + ", ".join(f"{item['site']} {item['alpha']:.3f}" for item in drawn[-len(sites) :]),
        row.label,
    )


def _table(sites: Sequence[str], states: Sequence[State]) -> Data:
    """Weight and intervals of every site in every round."""
    return [
        {
            "t": state["t"], "site": site, "alpha": alpha, "beta": beta,
            **dict(zip(("low", "quarter", "three", "high"), map(float, found), strict=True)),
        }
        for state in states
        for site, alpha, beta, found in zip(
            sites, state["alpha"], state["beta"], marginal_intervals(state["beta"]), strict=True
        )
    ]  # fmt: skip


def _bars(sites: Sequence[str], tips: list[Spec]) -> list[Spec]:
    y: Spec = {"field": "site", "type": "nominal", "title": None, "sort": list(sites)}
    x: Spec = {"type": "quantitative", "title": "alpha", "scale": {"zero": True}}

    def bar(low: str, high: str, width: float, opacity: float) -> Spec:
        return {
            "mark": {"type": "rule", "strokeWidth": width, "color": COLOURS[0], "opacity": opacity},
            "encoding": {"y": y, "x": {**x, "field": low}, "x2": {"field": high}},
        }

    return [
        bar("low", "high", 2, 0.7),
        bar("quarter", "three", 7, 0.5),
        {
            "mark": {"type": "circle", "size": 60, "color": COLOURS[5], "opacity": 1},
            "encoding": {"y": y, "x": {**x, "field": "alpha"}, "tooltip": tips},
        },
    ]
