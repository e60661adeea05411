"""Figures of test scores: differences by case, matrices of local models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autofedavg.core.evaluation import compare
from autofedavg.report.differences import Difference, differences, told
from autofedavg.report.figures.figure import (
    COLOURS,
    INK,
    MOST_LINES,
    MOST_MARKS,
    Data,
    Figure,
    Spec,
    colours,
    panels,
    row_filter,
    tooltip,
)
from autofedavg.report.read import Results
from autofedavg.report.tables import paired_scores


def differences_figure(results: Results) -> Figure | None:
    """Every case's difference from the baseline, with the test's p value."""
    found = differences(results)
    baseline = results.row(results.baseline)
    if not found or baseline is None:
        return None
    data: Data = [item._asdict() for item in found]
    labels = list(dict.fromkeys(item.row for item in found))
    words = _tests(results, labels)
    sites = list(results.sites)
    x: Spec = {"type": "quantitative", "title": f"points above or below {baseline.label}"}
    y: Spec = {"field": "row", "type": "nominal", "title": None, "sort": labels}
    layers: list[Spec] = [
        {"data": {"values": [{}]}, "mark": {"type": "rule", "opacity": 0.6},
         "encoding": {"x": {"datum": 0}}},
    ]  # fmt: skip
    shown = row_filter(labels)
    many = len(found) > MOST_MARKS
    few_sites = len(sites) <= MOST_LINES
    on_top = {**colours(sites), "legend": {"orient": "top"}}
    if not many:
        layers.append(
            {
                "data": {"values": _side_by_side(found, sites)},
                "transform": shown["transform"],
                "mark": {"type": "circle", "size": 26, "opacity": 0.65,
                         **({} if few_sites else {"color": COLOURS[0]})},
                "encoding": {
                    "x": {**x, "field": "value"},
                    "y": y,
                    "yOffset": {"field": "place", "type": "quantitative",
                                "scale": {"domain": [-1.2, 1.2]}},
                    **({"color": on_top} if few_sites else {}),
                    "tooltip": tooltip(("row", ""), ("site", ""), ("case", ""), ("value", "+.2f")),
                },
            }
        )  # fmt: skip
    layers += [
        {
            "data": {"values": words},
            "transform": shown["transform"],
            "mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.45},
            "encoding": {"y": y, "x": {**x, "field": "quarter"}, "x2": {"field": "three"}},
        },
        {
            "data": {"values": words},
            "transform": shown["transform"],
            "mark": {"type": "tick", "color": INK, "thickness": 3, "height": 26},
            "encoding": {"y": y, "x": {**x, "field": "mean"},
                         "tooltip": tooltip(("row", ""), ("mean", "+.2f"), ("test", ""))},
        },
        {
            "data": {"values": words},
            "transform": shown["transform"],
            "mark": {"type": "text", "align": "left", "x": 475},
            "encoding": {"y": y, "text": {"field": "test"}},
        },
    ]  # fmt: skip
    spec: Spec = {"params": shown["params"], "width": 465, "height": {"step": 44}, "layer": layers}
    dots = "" if many else " A dot is a case."
    caption = (
        f"Test score of each case minus that of {baseline.label}.{dots} Bar across: mean over "
        "sites; thick line: the middle half of all cases. p: Wilcoxon signed-rank test, two-sided, "
        "all cases pooled; n: cases."
    )
    return Figure(
        "differences", f"Case by case against {baseline.label}", caption, data, spec,
        about="; ".join(f"{w['row']}: mean {w['mean']:+.2f}, {w['test']}" for w in words),
    )  # fmt: skip


def _side_by_side(found: Sequence[Difference], sites: Sequence[str]) -> Data:
    """Dots of a site in a lane of their own, so that few cover one another."""
    lanes = max(1, len(sites) - 1)
    order = {site: number for number, site in enumerate(sites)}
    return [{**item._asdict(), "place": 2 * order[item.site] / lanes - 1} for item in found]


def _tests(results: Results, labels: Sequence[str]) -> Data:
    baseline = results.row(results.baseline)
    made = []
    for row in results.rows:
        if baseline is None or row is baseline or row.label not in labels:
            continue
        own, against = paired_scores(row, baseline)
        test = compare(own, against)
        if test is None:
            continue
        values = sorted(100 * (own[key] - against[key]) for key in own.keys() & against.keys())
        quarter, _, three = (
            statistics.quantiles(values, n=4, method="inclusive")
            if len(values) > 1
            else values[:1] * 3
        )
        made.append(
            {
                "row": row.label, "mean": 100 * test.gain, "quarter": quarter, "three": three,
                "test": f"{told(test)}, n = {test.n}",
            }
        )  # fmt: skip
    return made


def matrix_figure(results: Results) -> Figure | None:
    """K x K: every site's own model on every site's test cases."""
    kept, left = panels([row.label for row in results.rows])
    data: Data = []
    for row in results.rows:
        cells: dict[tuple[str, str], list[float]] = {}
        for summary in row.summaries:
            for model, scores in summary.matrix.items():
                for site, value in scores.items():
                    cells.setdefault((model, site), []).append(100 * value)
        data += [
            {"row": row.label, "model": model, "tested on": site, "score": statistics.fmean(found)}
            for (model, site), found in cells.items()
        ]
    if not data:
        return None
    sites = list(results.sites)
    short = max(map(len, sites)) * len(sites) <= 36
    step = 46 if len(sites) <= 6 else max(9, 280 // len(sites))
    # "tested on" is a field with a space; Vega-Lite takes it as it is.
    x: Spec = {"field": "tested on", "type": "nominal", "sort": sites,
               "axis": {"labelAngle": 0 if short else -90}}  # fmt: skip
    y: Spec = {"field": "model", "type": "nominal", "sort": sites, "title": "model of"}
    layers: list[Spec] = [
        {
            "mark": "rect",
            "encoding": {
                "x": x, "y": y,
                "color": {"field": "score", "type": "quantitative", "title": "score, %",
                          "scale": {"scheme": "viridis", "zero": False}},
                "tooltip": tooltip(("row", ""), ("model", ""), ("tested on", ""), ("score", ".2f")),
            },
        }
    ]  # fmt: skip
    if len(sites) <= 6:
        values = [item["score"] for item in data]
        middle = (min(values) + max(values)) / 2
        layers.append(
            {
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {
                    "x": x, "y": y,
                    "text": {"field": "score", "type": "quantitative", "format": ".1f"},
                    "color": {"condition": {"test": f"datum.score > {middle}", "value": "#000"},
                              "value": "#fff"},
                },
            }
        )  # fmt: skip
    spec: Spec = {
        **row_filter(kept),
        "data": {"values": [item for item in data if item["row"] in kept]},
        "columns": 3 if len(sites) <= 4 else 2,
        "facet": {"field": "row", "type": "nominal", "title": None, "sort": kept},
        "spec": {"width": {"step": step}, "height": {"step": step}, "layer": layers},
    }
    caption = (
        "The best local model of each site (rows) tested on each site's cases (columns). Local avg "
        f"is the mean of the diagonal, local gen of the rest.{left}"
    )
    return Figure("matrices", "Local models on every site", caption, data, spec)
