"""The distribution of the weights at chosen rounds (Figure 3c), with beta printed.

Three sites: a triangle, with outlines of the Dirichlet's density. Any other number: intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.series import first, layer_wise, whose
from autofedavg.report.figures.states import (
    NOW,
    State,
    behind_slider,
    dirichlet,
    on_paper,
    states_of,
    steps,
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
        return {
            "mark": {
                "type": "rule",
                "strokeWidth": width,
                "color": vega.COLOURS[0],
                "opacity": opacity,
            },
            "encoding": {"y": y, "x": {**x, "field": low}, "x2": {"field": high}},
        }

    dot: Spec = {
        "mark": {"type": "circle", "size": 60, "color": vega.COLOURS[5], "opacity": 1},
        "encoding": {"y": y, "x": {**x, "field": "alpha"}, "tooltip": tips},
    }
    return [bar("low", "high", 2, 0.7), bar("quarter", "three", 7, 0.5), dot]
