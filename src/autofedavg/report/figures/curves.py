"""Curves over the rounds, a panel per row: the weights (Figure 3a), the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autofedavg.report.figures.figure import (
    INK,
    MOST_LINES,
    SLIDER,
    Data,
    Figure,
    Spec,
    colours,
    dots,
    every,
    panels,
    row_filter,
    slider,
    thinned,
    tooltip,
)
from autofedavg.report.figures.series import alpha_series, learns, loss_series, means
from autofedavg.report.read import Results, Row

TALL, LETTERS = 150, 12  # pixels of a panel, and of a line of words beside its curves
ROUND: Spec = {"field": "t", "type": "quantitative", "title": "round", "axis": {"tickMinStep": 1}}


def alpha_figure(results: Results) -> Figure | None:
    """How much each site counts, round by round."""
    rows = [row for row in results.rows if learns(row)]
    text = (
        "Aggregation weights after each round; in a round in which a site did not answer, those of "
        "the others were scaled to a sum of one. Layer-wise weights as their mean over layers. "
        "Fixed weights (FedAvg, FedProx) do not move and are in the table of weights."
    )
    return _per_site(
        results, rows, "alpha", "Aggregation weights over the rounds (Figure 3a)", text,
        lambda row: alpha_series(results, row), "alpha", ".3f", True,
    )  # fmt: skip


def loss_figure(results: Results) -> Figure | None:
    """Every site's training loss, round by round."""
    text = "Mean training loss of each site's local steps."
    return _per_site(
        results, list(results.rows), "loss", "Training loss over the rounds", text,
        loss_series, "loss", ".3f", False,
    )  # fmt: skip


def _per_site(
    results: Results,
    rows: list[Row],
    name: str,
    title: str,
    text: str,
    series: Callable[[Row], Data],
    value: str,
    shape: str,
    zero: bool,
) -> Figure | None:
    """A panel per row: a line per site, or with many sites a heat map."""
    kept, left = panels([row.label for row in rows])
    data = [item for row in rows for item in series(row)]
    drawn = means([item for item in data if item["row"] in kept], value, "site")
    if not drawn:
        return None
    drawn, stride = thinned(drawn)
    sites = list(results.sites)
    many = len(sites) > MOST_LINES
    tips = tooltip(("row", ""), ("site", ""), ("t", "d"), (value, shape))
    panel: Spec
    if many:
        panel = {
            "height": 12 * len(sites),
            "mark": {"type": "rect"},
            "encoding": {
                "x": {**ROUND, "type": "ordinal", "axis": {"labelOverlap": True}},
                "y": {"field": "site", "type": "nominal", "title": None, "sort": sites},
                "color": {"field": value, "type": "quantitative", "title": value},
                "tooltip": tips,
            },
        }
    else:
        drawn = _with_places(drawn, value, zero)
        panel = {"height": TALL, "layer": _lines(sites, value, shape, zero, len(drawn), tips)}
    shown = row_filter(kept)
    if not many:
        rounds = sorted({item["t"] for item in drawn})
        shown["params"].append(slider(rounds[0], rounds[-1], stride))
    spec = {
        **shown,
        "data": {"values": drawn},
        "columns": 2,
        "facet": {"field": "row", "type": "nominal", "title": None, "sort": kept},
        "spec": {"width": 250, **panel},
    }
    repeats = max(item["repeats"] for item in drawn)
    mean = " Means over the rounds that all finished repeats have." if repeats > 1 else ""
    return Figure(name, title, f"{text}{mean}{left}{every(stride)}", data, spec,
                  about=_last_values(drawn, value, shape, many))  # fmt: skip


def _lines(
    sites: list[str], value: str, shape: str, zero: bool, marks: int, tips: list[Spec]
) -> list[Spec]:
    """Lines, and the values at the slider's round printed beside it."""
    y: Spec = {
        "field": value,
        "type": "quantitative",
        "title": value,
        "scale": {"zero": zero},
    }
    at: Spec = {"filter": f"datum.t == {SLIDER}"}
    return [
        {
            "mark": {"type": "line", "point": dots(marks, 14), "strokeWidth": 2},
            "encoding": {"x": ROUND, "y": y, "color": colours(sites), "tooltip": tips},
        },
        {
            "transform": [at, {"aggregate": [{"op": "min", "field": "t", "as": "t"}]}],
            "mark": {"type": "rule", "opacity": 0.35},
            "encoding": {"x": ROUND},
        },
        {
            "transform": [at],
            "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11, "color": INK},
            "encoding": {
                "x": ROUND,
                "y": {**y, "field": "place"},
                "text": {"field": value, "type": "quantitative", "format": shape},
            },
        },
    ]


def _with_places(drawn: Data, value: str, zero: bool) -> Data:
    """Every item with where its number is printed: apart from those of the same round."""
    values = [item[value] for item in drawn]
    gap = (max(values) - (0.0 if zero else min(values))) * LETTERS / TALL
    rounds: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for item in drawn:
        rounds.setdefault((item["row"], item["t"]), []).append(item)
    placed: Data = []
    for items in rounds.values():
        items.sort(key=lambda item: item[value])
        places = apart([item[value] for item in items], gap)
        placed += [{**item, "place": place} for item, place in zip(items, places, strict=True)]
    return placed


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Ascending values moved so that neighbours are at least a gap apart, as a whole in place.

    Example:
        >>> apart([1.0, 1.0, 5.0], 2.0)
        [0.0, 2.0, 5.0]
    """
    groups: list[tuple[float, int]] = []  # middle and size of values that touch each other
    for value in values:
        groups.append((value, 1))
        while len(groups) > 1:
            (low, few), (high, more) = groups[-2:]
            if high - low >= gap * (few + more) / 2:
                break
            groups[-2:] = [((low * few + high * more) / (few + more), few + more)]
    return [
        middle + gap * (number - (size - 1) / 2)
        for middle, size in groups
        for number in range(size)
    ]


def _last_values(drawn: Data, value: str, shape: str, many: bool) -> str:
    """The last values in words, for those who do not see the curves."""
    last: dict[str, dict[str, float]] = {}
    for item in sorted(drawn, key=lambda item: item["t"]):
        last.setdefault(item["row"], {})[item["site"]] = item[value]
    parts = []
    for row, values in last.items():
        top = sorted(values, key=lambda site: -values[site])[:3] if many else list(values)
        said = ", ".join(f"{site} {values[site]:{shape}}" for site in top)
        parts.append(f"{row}: {said}")
    return f"Last {value}: {'; '.join(parts)}."
