"""Three sites' weights in a triangle, with outlines of the Dirichlet's density (Figure 3c)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autofedavg.core.errors import printable
from autofedavg.report.figures.dirichlet import HALF_HEIGHT, LEVELS, on_triangle, outlines
from autofedavg.report.figures.figure import (
    COLOURS,
    INK,
    SLIDER,
    Data,
    Figure,
    Spec,
    slider,
    tooltip,
)
from autofedavg.report.figures.series import layer_wise, which
from autofedavg.report.figures.states import (
    NOW,
    behind_slider,
    nested,
    on_paper,
    states_of,
    steps,
    table_of,
    words_of,
)
from autofedavg.report.read import Row
from autofedavg.report.values import stem

SIDE = 240
_PLAIN: Spec = {"axis": None, "scale": {"domain": [-0.16, 1.16]}}
_TALL: Spec = {"axis": None, "scale": {"domain": [-0.2, 1.0]}}


def triangle(row: Row, sites: Sequence[str], said: str) -> Figure:
    """Three sites' weights in a triangle, with a slider; on paper, triangles side by side."""
    layered = layer_wise(row)
    every = states_of(row, len(sites))
    states = behind_slider(every)
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
        words.append({**place, "text": words_of(state), "x": 0.5, "y": -0.16})
    T = states[-1]["t"]
    names = [printable(site).replace("\\", "/") for site in sites]
    tips: list[Spec] = [
        {"field": f"a{k + 1}", "type": "quantitative", "format": ".3f", "title": name}
        for k, name in enumerate(names)
    ]
    if layered:
        tips += tooltip(("layer", "d"))
    moving = _layers(sites, tips, layered, bool(lines), NOW, f"datum.t <= {SLIDER}")
    datasets = {"spots": spots, "lines": lines, "words": words, "frame": _frame()}
    spec: Spec = {
        "datasets": datasets,
        "params": [slider(0, T)],
        "width": 1.6 * SIDE,
        "height": 1.6 * SIDE * 0.9,
        "layer": moving,
    }
    rounds = on_paper(every)
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
        f"{shown}{density}{whose}{steps(every)}{said}",
        table_of(row, sites, every), spec, still,
        f"{row.label}: " + "; ".join(words_of(state) for state in states if state["t"] in rounds),
        row.label,
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


def _ring(ring: np.ndarray) -> dict[str, list[float]]:
    """An outline as three short lists: a row per point would make the page heavy."""
    xs, ys = ring.T.round(4).tolist()
    return {"x": xs, "y": ys, "order": list(range(len(xs)))}


def _frame() -> Data:
    """The triangle, and lines of equal weight at a quarter, a half and three quarters."""
    paths: list[list[tuple[float, ...]]] = [[(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)]]
    for share in (0.25, 0.5, 0.75):
        ends = [(share, 1 - share, 0.0), (share, 0.0, 1 - share)]
        paths += [[end[-k:] + end[:-k] for end in ends] for k in range(3)]
    return [
        {"line": number, "order": order, "x": on_triangle(point)[0], "y": on_triangle(point)[1]}
        for number, path in enumerate(paths)
        for order, point in enumerate(path)
    ]


def _points(alpha: Sequence[Any]) -> list[tuple[float, ...]]:
    """One point per layer, or one in all."""
    if not nested(alpha):
        return [tuple(float(a) for a in alpha)]
    return [tuple(float(a) for a in layer) for layer in zip(*alpha, strict=True)]


def _short(site: str) -> str:
    return site if len(site) <= 18 else f"{site[:17]}…"
