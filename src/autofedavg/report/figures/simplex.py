"""The weights of single rows: their distribution at chosen rounds (Figure 3c), and by layers.

Three sites: a triangle, with outlines of the Dirichlet's density. Any other number: intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.series import (
    NOW,
    State,
    behind_slider,
    dirichlet,
    first,
    layer_wise,
    on_paper,
    states_of,
    steps,
    whose,
)
from autofedavg.report.figures.triangle import triangle
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.repeats import Results, Row, stem


def simplex_figures(results: Results) -> list[Figure]:
    """A figure for every row that learns its weights."""
    sites = list(results.sites)
    begun = [row for row in results.rows if row.learns and first(row).rounds]
    if len(sites) == 3:
        # The paper's figure first: one weight per site, with a distribution.
        begun.sort(key=lambda row: (layer_wise(row), not dirichlet(row)))
        draw = triangle
    else:  # intervals are those of one Dirichlet
        begun = [row for row in begun if not layer_wise(row) and dirichlet(row)]
        draw = _intervals
    return [draw(row, sites, vega.few(len(begun))) for row in begun[: vega.MOST_FIGURES]]


def _intervals(row: Row, sites: Sequence[str], said: str) -> Figure:
    """Every site's weight with its intervals, with a slider; on paper, panels."""
    every = states_of(row, len(sites))
    table = _table(sites, every)
    shown = {state["t"]: state["until"] for state in behind_slider(every)}
    drawn = [{**item, "until": shown[item["t"]]} for item in table if item["t"] in shown]
    rounds = on_paper(every)
    bars = _bars(sites)
    spec: Spec = {
        "data": {"values": drawn},
        "params": [vega.slider(0, every[-1]["t"])],
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
    last = ", ".join(f"{item['site']} {item['alpha']:.3f}" for item in drawn[-len(sites) :])
    return Figure(
        f"simplex-{stem(row.name)}",
        f"Distribution of the weights: {row.label} (Figure 3c)",
        "Per site: the weight that averages the models (dot), and where the Dirichlet holds half "
        f"(thick) and nine tenths (thin) of the weights it draws.{whose(row)}{steps(every)}{said}",
        [{"row": row.label, **item} for item in table],
        spec,
        still,
        f"{row.label}, last round: {last}",
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


def marginal_intervals(
    beta: Sequence[float], shares: Sequence[float] = (0.05, 0.25, 0.75, 0.95)
) -> np.ndarray:
    """(K, shares): quantiles of each site's weight, which is Beta(beta_k, rest) distributed."""
    own = np.asarray(beta, dtype=float)[:, None]
    found: np.ndarray = stats.beta.ppf(np.asarray(shares)[None, :], own, own.sum() - own)
    return found


def _bars(sites: Sequence[str]) -> list[Spec]:
    y = vega.names("site", sites)
    x: Spec = {"type": "quantitative", "title": "alpha", "scale": {"zero": True}}
    tips = vega.tooltip(
        ("site", ""), ("alpha", ".3f"), ("beta", ".3f"), ("low", ".3f"), ("high", ".3f")
    )

    def bar(low: str, high: str, width: float, opacity: float) -> Spec:
        rule = {"type": "rule", "strokeWidth": width, "color": vega.COLOURS[0], "opacity": opacity}
        return vega.layer(rule, y=y, x={**x, "field": low}, x2={"field": high})

    dot = {"type": "circle", "size": 60, "color": vega.COLOURS[5], "opacity": 1}
    return [
        bar("low", "high", 2, 0.7),
        bar("quarter", "three", 7, 0.5),
        vega.layer(dot, y=y, x={**x, "field": "alpha"}, tooltip=tips),
    ]


def layer_figures(results: Results) -> list[Figure]:
    """A figure for every row with a weight per layer."""
    rows = [row for row in results.rows if layer_wise(row)]
    return [
        _heat_map(list(results.sites), row, vega.few(len(rows)))
        for row in rows[: vega.MOST_FIGURES]
    ]


def _heat_map(sites: list[str], row: Row, said: str) -> Figure:
    chosen = first(row)
    last = chosen.rounds[-1]["alpha"]
    P = len(last[0])
    known = chosen.environment.get("layers") or []
    layers = [f"{p + 1} {known[p]}" if len(known) == P else f"layer {p + 1}" for p in range(P)]
    data: Data = [
        {"row": row.label, "t": line["t"], "site": site, "layer": layer, "alpha": value}
        for line in chosen.rounds
        if line["alpha"]
        for site, per_layer in zip(sites, line["alpha"], strict=True)
        for layer, value in zip(layers, per_layer, strict=False)
    ]
    drawn, stride = vega.thinned(data)
    spec: Spec = {
        "data": {"values": drawn},
        "columns": 3 if len(sites) <= 3 else 4,
        "facet": vega.names("site", sites),
        "spec": {
            "width": 180,
            "height": {"step": max(4, min(16, 320 // P))},
            "mark": {"type": "rect"},
            "encoding": {
                "x": {"field": "t", "type": "ordinal", "title": "round",
                      "axis": {"labelOverlap": True, "labelAngle": 0}},
                "y": {**vega.names("layer", layers),
                      "axis": {"labelOverlap": True, "labelLimit": 150}},
                "color": vega.number("alpha", "alpha", scale={"domainMin": 0, "scheme": "viridis"}),
                "tooltip": vega.tooltip(("site", ""), ("layer", ""), ("t", "d"), ("alpha", ".3f")),
            },
        },
    }  # fmt: skip
    spread = max(max(per_layer) - min(per_layer) for per_layer in last)
    return Figure(
        f"layers-{stem(row.name)}",
        f"Layer-wise weights: {row.label}",
        f"Layers from the input (top) to the output, rounds from left to right.{whose(row)}"
        f"{vega.every(stride)}{said}",
        data,
        spec,
        about=f"{row.label}: in the last round a site's weight differs by up to {spread:.2f} "
        f"between its {P} layers.",
        row=row.label,
    )
