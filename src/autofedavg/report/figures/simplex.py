"""The distribution of the weights at chosen rounds (Figure 3c), with beta printed.

Three sites: a triangle, with outlines of the Dirichlet's density. Any other number: intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autofedavg.report.figures.dirichlet import (
    HALF_HEIGHT,
    LEVELS,
    marginal_intervals,
    on_triangle,
    outlines,
)
from autofedavg.report.figures.figure import (
    COLOURS,
    INK,
    MOST_FIGURES,
    Data,
    Figure,
    Spec,
    few,
    tooltip,
)
from autofedavg.report.figures.series import first, layer_wise, learns, which
from autofedavg.report.read import Results, Row, stem

States = Sequence[Mapping[str, Any]]
CHOSEN = (0.0, 0.1, 1 / 6, 1.0)  # of T: the paper shows rounds 0, 30, 50 and 300 of 300
MOST_STATES = 60  # states behind a slider; rounds between two show the earlier one
SLIDER = "round"
SIDE = 240
_PLAIN: Spec = {"axis": None, "scale": {"domain": [-0.16, 1.16]}}
_TALL: Spec = {"axis": None, "scale": {"domain": [-0.2, 1.0]}}


def simplex_figures(results: Results) -> list[Figure]:
    """A figure for every row that learns its weights."""
    sites = list(results.sites)
    made = []
    begun = [row for row in results.rows if learns(row) and first(row).rounds]
    begun.sort(key=layer_wise)  # one weight per site first: the paper's figure
    said = few([row.label for row in begun])
    for row in begun[:MOST_FIGURES]:
        states = _states(row, len(sites))
        if len(sites) == 3:
            made.append(_triangle(row, sites, states, said))
        elif states and states[0]["beta"] is not None and not layer_wise(row):
            made.append(_intervals(row, sites, states, said))
    return made


def _states(row: Row, K: int) -> list[dict[str, Any]]:
    """Round, alpha (K, or K times P) and beta (only a Dirichlet's), from round 0 on, thinned."""
    chosen = first(row)
    method = chosen.config["method"]
    dirichlet = method.get("constraint") == "dirichlet"
    start = {"t": 0, "alpha": [1 / K] * K, "beta": [float(method.get("beta0", 6.0))] * K}
    lines = [start, *chosen.rounds]
    stride = -(-len(lines) // MOST_STATES)
    kept = sorted({*range(0, len(lines), stride), len(lines) - 1, *_chosen(len(lines) - 1)})
    return [
        {
            "t": lines[place]["t"],
            "until": lines[later]["t"] if later is not None else lines[-1]["t"] + 1,
            "alpha": lines[place]["alpha"],
            "beta": lines[place]["beta"] if dirichlet else None,
        }
        for place, later in zip(kept, [*kept[1:], None], strict=True)
    ]


def _chosen(last: int) -> list[int]:
    return sorted({round(share * last) for share in CHOSEN})


def _triangle(row: Row, sites: Sequence[str], states: States, said: str) -> Figure:
    layered = layer_wise(row)
    spots: Data = []
    lines: Data = []
    words: Data = []
    for state in states:
        place = {"t": state["t"], "until": state["until"]}
        for number, alpha in enumerate(_points(state["alpha"])):
            x, y = on_triangle(alpha)
            named = dict(zip(("a1", "a2", "a3"), alpha, strict=True))
            spots.append({**place, "x": x, "y": y, "layer": number + 1, **named})
        if state["beta"] is not None and not layered:
            lines += [
                {**place, "level": level, **_ring(ring)}
                for level, ring in outlines(state["beta"]).items()
            ]
        words.append({**place, "text": _words(state), "x": 0.5, "y": -0.16})
    T = states[-1]["t"]
    data = [_table_row(row, sites, state) for state in states]
    tips = [
        {"field": f"a{k + 1}", "type": "quantitative", "format": ".3f", "title": site}
        for k, site in enumerate(sites)
    ]
    if layered:
        tips += tooltip(("layer", "d"))
    now = f"datum.t <= {SLIDER} && {SLIDER} < datum.until"
    moving = _layers(sites, tips, layered, bool(lines), now, f"datum.t <= {SLIDER}")
    datasets = {"spots": spots, "lines": lines, "words": words, "frame": _frame()}
    spec: Spec = {
        "datasets": datasets,
        "params": [_slider(T)],
        "width": 1.6 * SIDE,
        "height": 1.6 * SIDE * 0.9,
        "layer": moving,
    }
    rounds = _shown_rounds(states)
    still: Spec = {
        "datasets": datasets,
        "hconcat": [
            {
                "title": f"round {t}",
                "width": SIDE * 0.85,
                "height": SIDE * 0.78,
                "layer": _layers(
                    sites, tips, layered, bool(lines), f"datum.t == {t}", f"datum.t <= {t}"
                ),
            }
            for t in rounds
        ],
    }
    seed = which(row)
    shown = (
        "Each dot is a layer's weights."
        if layered
        else "The dot is the weight that averages the models, the line where it came from."
    )
    density = (
        f" Areas: the Dirichlet's density, from {LEVELS[0]:.0%} of its peak outside to "
        f"{LEVELS[-1]:.0%} inside."
        if lines
        else ""
    )
    whose = f" From {seed}." if seed else ""
    return Figure(
        f"simplex-{stem(row.name)}", f"Weights on the simplex: {row.label} (Figure 3c)",
        "A corner is a site that counts alone, the middle equal weights. "
        f"{shown}{density}{whose}{said}",
        data, spec, still,
        f"{row.label}: " + "; ".join(_words(state) for state in states if state["t"] in rounds),
    )  # fmt: skip


def _layers(
    sites: Sequence[str], tips: list[Spec], layered: bool, density: bool, now: str, until_now: str
) -> list[Spec]:
    x: Spec = {"field": "x", "type": "quantitative", **_PLAIN}
    y: Spec = {"field": "y", "type": "quantitative", **_TALL}
    made: list[Spec] = [
        {
            "data": {"name": "frame"},
            "mark": {"type": "line", "color": INK, "strokeWidth": 1},
            "encoding": {
                "x": x, "y": y, "detail": {"field": "line"}, "order": {"field": "order"},
                "opacity": {"condition": {"test": "datum.line == 0", "value": 0.8}, "value": 0.14},
            },
        },
        {
            "data": {"values": [
                {"text": _short(sites[0]), "x": 0.0, "y": -0.07},
                {"text": _short(sites[1]), "x": 1.0, "y": -0.07},
                {"text": _short(sites[2]), "x": 0.5, "y": HALF_HEIGHT + 0.07},
            ]},
            "mark": {"type": "text", "fontWeight": "bold"},
            "encoding": {"x": x, "y": y, "text": {"field": "text"}},
        },
    ]  # fmt: skip
    if density:
        made.append(
            {
                "data": {"name": "lines"},
                "transform": [{"filter": now}, {"flatten": ["x", "y", "order"]}],
                "mark": {
                    "type": "line", "interpolate": "linear-closed", "filled": True,
                    "fill": COLOURS[0], "stroke": None, "fillOpacity": 0.2, "strokeWidth": 0,
                },
                "encoding": {
                    "x": x, "y": y, "detail": {"field": "level", "type": "nominal"},
                    "order": {"field": "order"},
                },
            }
        )  # fmt: skip
    if not layered:
        made.append(
            {
                "data": {"name": "spots"},
                "transform": [{"filter": until_now}],
                "mark": {"type": "line", "color": COLOURS[5], "strokeWidth": 1.5},
                "encoding": {"x": x, "y": y, "order": {"field": "t"}},
            }
        )
    made += [
        {
            "data": {"name": "spots"},
            "transform": [{"filter": now}],
            "mark": {"type": "circle", "size": 40 if layered else 70, "color": COLOURS[5],
                     "opacity": 0.7 if layered else 1},
            "encoding": {"x": x, "y": y, "tooltip": tips},
        },
        {
            "data": {"name": "words"},
            "transform": [{"filter": now}],
            "mark": {"type": "text", "fontSize": 11},
            "encoding": {"x": x, "y": y, "text": {"field": "text"}},
        },
    ]  # fmt: skip
    return made


def _intervals(row: Row, sites: Sequence[str], states: States, said: str) -> Figure:
    drawn: Data = []
    for state in states:
        found = marginal_intervals(state["beta"])
        for k, site in enumerate(sites):
            low, quarter, three, high = (float(value) for value in found[k])
            drawn.append(
                {
                    "t": state["t"], "until": state["until"], "site": site,
                    "alpha": state["alpha"][k], "beta": state["beta"][k],
                    "low": low, "quarter": quarter, "three": three, "high": high,
                }
            )  # fmt: skip
    tips = tooltip(("site", ""), ("alpha", ".3f"), ("beta", ".3f"), ("low", ".3f"), ("high", ".3f"))
    rounds = _shown_rounds(states)
    bars = _bars(sites, tips)
    spec: Spec = {
        "data": {"values": drawn},
        "params": [_slider(states[-1]["t"])],
        "transform": [{"filter": f"datum.t <= {SLIDER} && {SLIDER} < datum.until"}],
        "width": 420,
        "height": {"step": 20},
        "layer": bars,
    }
    still: Spec = {
        "data": {"values": [item for item in drawn if item["t"] in rounds]},
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
        + said,
        [{"row": row.label, **{k: v for k, v in item.items() if k != "until"}} for item in drawn],
        spec,
        still,
        f"{row.label}, last round: "
        + ", ".join(f"{item['site']} {item['alpha']:.3f}" for item in drawn[-len(sites) :]),
    )


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


def _ring(ring: np.ndarray) -> dict[str, list[float]]:
    """An outline as three short lists: a row per point would make the page heavy."""
    xs, ys = ring.T.round(4).tolist()
    return {"x": xs, "y": ys, "order": list(range(len(xs)))}


def _slider(T: int) -> Spec:
    return {
        "name": SLIDER,
        "value": T,
        "bind": {"input": "range", "min": 0, "max": T, "step": 1, "name": "round "},
    }


def _shown_rounds(states: States) -> list[int]:
    """The rounds on paper: those the states have that are nearest to the chosen ones."""
    known = [int(state["t"]) for state in states]
    return sorted({min(known, key=lambda t: abs(t - share * known[-1])) for share in CHOSEN})


def _frame() -> Data:
    """The triangle, and lines of equal weight at a quarter, a half and three quarters."""
    corners = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)]
    paths = [corners]
    for share in (0.25, 0.5, 0.75):
        for k in range(3):
            one = [0.0, 0.0, 0.0]
            other = [0.0, 0.0, 0.0]
            one[k] = other[k] = share
            one[(k + 1) % 3], other[(k + 2) % 3] = 1 - share, 1 - share
            paths.append([tuple(one), tuple(other)])  # type: ignore[list-item]
    return [
        {"line": number, "order": order, "x": on_triangle(point)[0], "y": on_triangle(point)[1]}
        for number, path in enumerate(paths)
        for order, point in enumerate(path)
    ]


def _points(alpha: Sequence[Any]) -> list[tuple[float, ...]]:
    """One point per layer, or one in all."""
    if not _nested(alpha):
        return [tuple(float(a) for a in alpha)]
    return [tuple(float(a) for a in layer) for layer in zip(*alpha, strict=True)]


def _nested(values: Sequence[Any]) -> bool:
    return any(isinstance(value, list) for value in values)


def _words(state: Mapping[str, Any]) -> str:
    beta = state["beta"]
    if beta is not None and not _nested(beta):
        return f"round {state['t']}: beta = ({', '.join(f'{b:.2f}' for b in beta)})"
    if not _nested(state["alpha"]):
        return f"round {state['t']}: alpha = ({', '.join(f'{a:.2f}' for a in state['alpha'])})"
    return f"round {state['t']}, {len(state['alpha'][0])} layers"


def _table_row(row: Row, sites: Sequence[str], state: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"row": row.label, "t": state["t"]}
    for k, site in enumerate(sites):
        values[f"alpha {site}"] = state["alpha"][k]
        if state["beta"] is not None:
            values[f"beta {site}"] = state["beta"][k]
    return values


def _short(site: str) -> str:
    return site if len(site) <= 18 else f"{site[:17]}…"
