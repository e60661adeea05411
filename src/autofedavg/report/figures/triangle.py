"""Three sites' weights in a triangle, with outlines of the Dirichlet's density (Figure 3c)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autofedavg.core.errors import printable
from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.series import (
    NOW,
    State,
    behind_slider,
    layer_wise,
    nested,
    on_paper,
    states_of,
    steps,
    whose,
    words_of,
)
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.repeats import Row, stem

SIDE = 240
LEVELS = (0.05, 0.35, 0.65, 0.95)  # of the density's peak
HALF_HEIGHT = math.sqrt(3) / 2
_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, HALF_HEIGHT]])


def triangle(row: Row, sites: Sequence[str], said: str) -> Figure:
    """Three sites' weights in a triangle, with a slider; on paper, triangles side by side."""
    layered = layer_wise(row)
    every = states_of(row, len(sites))
    states = behind_slider(every)
    datasets = _datasets(states, layered)
    density = bool(datasets["lines"])
    tips: list[Spec] = [
        {"field": f"a{k}", "type": "quantitative", "format": ".3f",
         "title": printable(site).replace("\\", "/")}
        for k, site in enumerate(sites, 1)
    ]  # fmt: skip
    if layered:
        tips += vega.tooltip(("layer", "d"))
    spec: Spec = {
        "datasets": datasets,
        "params": [vega.slider(0, states[-1]["t"])],
        "width": 1.6 * SIDE,
        "height": 1.6 * SIDE * 0.9,
        "layer": _layers(sites, tips, layered, density, NOW, f"datum.t <= {vega.SLIDER}"),
    }
    rounds = on_paper(every)
    small = {"width": SIDE * 0.85, "height": SIDE * 0.78}
    at = {t: (f"datum.t == {t}", f"datum.t <= {t}") for t in rounds}
    still: Spec = {
        "datasets": datasets,
        "hconcat": [
            {"title": f"round {t}", **small, "layer": _layers(sites, tips, layered, density, *when)}
            for t, when in at.items()
        ],
    }
    caption = "A corner is a site that counts alone, the middle equal weights. " + (
        "Each dot is a layer's weights."
        if layered
        else "The dot is the weight that averages the models, the line where it came from."
    )
    if density:
        caption += (
            f" Areas: the Dirichlet's density, from {LEVELS[0]:.0%} of its peak outside to "
            f"{LEVELS[-1]:.0%} inside."
        )
    return Figure(
        f"simplex-{stem(row.name)}", f"Weights on the simplex: {row.label} (Figure 3c)",
        f"{caption}{whose(row)}{steps(every)}{said}", _table(row, sites, every), spec, still,
        f"{row.label}: " + "; ".join(words_of(state) for state in states if state["t"] in rounds),
        row.label,
    )  # fmt: skip


def _datasets(states: Sequence[State], layered: bool) -> dict[str, Data]:
    """What the triangle is drawn from: weights, outlines and words of every state."""
    spots: Data = []
    lines: Data = []
    words: Data = []
    for state in states:
        place = {"t": state["t"], "until": state["until"]}
        for number, alpha in enumerate(_points(state["alpha"]), 1):
            x, y = on_triangle(alpha)
            named = dict(zip(("a1", "a2", "a3"), alpha, strict=True))
            spots.append({**place, "x": x, "y": y, "layer": number, **named})
        if state["beta"] is not None and not layered:
            # An outline as three short lists: a row per point would make the page heavy.
            for level, ring in outlines(state["beta"]).items():
                xs, ys = ring.T.round(4).tolist()
                points = {"x": xs, "y": ys, "order": list(range(len(xs)))}
                lines.append({**place, "level": level, **points})
        words.append({**place, "text": words_of(state), "x": 0.5, "y": -0.16})
    return {"spots": spots, "lines": lines, "words": words, "frame": _frame()}


def _table(row: Row, sites: Sequence[str], states: Sequence[State]) -> Data:
    """Every state as a line: alpha and beta of each site."""
    lines: Data = []
    for state in states:
        line: dict[str, Any] = {"row": row.label, "t": state["t"]}
        for k, site in enumerate(sites):
            known = [name for name in ("alpha", "beta") if state[name] is not None]
            line |= {f"{name} {site}": state[name][k] for name in known}
        lines.append(line)
    return lines


def _layers(
    sites: Sequence[str], tips: list[Spec], layered: bool, density: bool, now: str, until_now: str
) -> list[Spec]:
    x, y = (
        {"field": field, "type": "quantitative", "axis": None, "scale": {"domain": domain}}
        for field, domain in (("x", [-0.16, 1.16]), ("y", [-0.2, 1.0]))
    )

    def layer(data: Spec, when: str, mark: Spec, **encoding: Any) -> Spec:
        only = {"transform": [{"filter": when}]} if when else {}
        return {"data": data, **only, **vega.layer(mark, x=x, y=y, **encoding)}

    text, order = {"field": "text"}, {"field": "order"}
    corners = zip(sites, ((0.0, -0.07), (1.0, -0.07), (0.5, HALF_HEIGHT + 0.07)), strict=True)
    names = [{"text": _short(site), "x": at, "y": up} for site, (at, up) in corners]
    faint = {"condition": {"test": "datum.line == 0", "value": 0.8}, "value": 0.14}
    frame = {"type": "line", "color": vega.INK, "strokeWidth": 1}
    bold = {"type": "text", "fontWeight": "bold"}
    made = [
        layer({"name": "frame"}, "", frame, detail={"field": "line"}, order=order, opacity=faint),
        layer({"values": names}, "", bold, text=text),
    ]
    if density:
        area = {
            "type": "line", "interpolate": "linear-closed", "filled": True,
            "fill": vega.COLOURS[0], "stroke": None, "fillOpacity": 0.2, "strokeWidth": 0,
        }  # fmt: skip
        level = {"field": "level", "type": "nominal"}
        made.append(layer({"name": "lines"}, now, area, detail=level, order=order))
        made[-1]["transform"].append({"flatten": ["x", "y", "order"]})
    spots: Spec = {"name": "spots"}
    if not layered:
        path = {"type": "line", "color": vega.COLOURS[5], "strokeWidth": 1.5}
        made.append(layer(spots, until_now, path, order={"field": "t"}))
    size, opacity = (40, 0.7) if layered else (70, 1)
    dot = {"type": "circle", "size": size, "color": vega.COLOURS[5], "opacity": opacity}
    made.append(layer(spots, now, dot, tooltip=tips))
    made.append(layer({"name": "words"}, now, {"type": "text", "fontSize": 11}, text=text))
    return made


def on_triangle(alpha: Sequence[float]) -> tuple[float, float]:
    """Where three weights lie in a triangle of unit sides; the third site's corner is on top."""
    x, y = np.asarray(alpha, dtype=float) @ _CORNERS
    return float(x), float(y)


def outlines(beta: Sequence[float], points: int = 40) -> dict[float, np.ndarray]:
    """Level -> (points, 2) on the triangle, where the density has that share of its peak.

    The density of Eq. 5 is log-concave for beta of at least 1, so each region is convex and a
    ray from the mode leaves it once: where, is found by bisection.
    """
    power = np.maximum(np.asarray(beta, dtype=float) - 1, 1e-9)
    mode = power / power.sum()
    angles = np.linspace(0, 2 * math.pi, points, endpoint=False)
    # Two directions that span the simplex's plane and stay orthonormal on the triangle.
    across = np.array([-1.0, 1.0, 0.0])
    up = np.array([-0.5, -0.5, 1.0]) / HALF_HEIGHT
    rays = np.cos(angles)[:, None] * across + np.sin(angles)[:, None] * up
    with np.errstate(divide="ignore"):
        limit = np.where(rays < 0, -mode / rays, np.inf).min(axis=1)
    found = {}
    for level in LEVELS:
        low, high = np.zeros(points), limit.copy()
        for _ in range(50):
            middle = (low + high) / 2
            place = np.maximum(mode + middle[:, None] * rays, 1e-300)
            inside = (power * (np.log(place) - np.log(mode))).sum(axis=1) >= math.log(level)
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        found[level] = (mode + low[:, None] * rays) @ _CORNERS
    return found


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
