"""Figures of test scores: differences by case, matrices of local models."""

from __future__ import annotations

import statistics

from autofedavg.core.evaluation import Paired
from autofedavg.report.differences import told
from autofedavg.report.families import families
from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.repeats import Pairing, Results


def differences_figure(results: Results) -> Figure | None:
    """Every case's difference from the baseline, with the test's p value."""
    baseline, sites = results.baseline_row, list(results.sites)
    data: Data = [
        {"row": pairing.row.label, "site": site, "case": case, "value": 100 * gap}
        for pairing in results.pairings.values()
        for (site, case), gap in pairing.gaps.items()
    ]
    if not data or baseline is None:
        return None
    labels = [pairing.row.label for pairing in results.pairings.values()]
    words = [_words(each, test) for each in results.pairings.values() if (test := each.test())]
    many = len(data) > vega.MOST_MARKS
    named = f"points above or below {baseline.label}"

    def panel(rows: list[str], last: bool) -> Spec:
        mine, told = ([item for item in part if item["row"] in rows] for part in (data, words))
        drawn = _panel(rows, [] if many else mine, told, sites, named if last else None)
        return {"width": 465, "height": {"step": 44}, "layer": drawn}

    spec = vega.by_family(families(results), labels, panel)
    dots = "" if many else " A dot is a case."
    caption = (
        f"Test score of each case minus that of {baseline.label}.{dots} Bar across: mean over "
        "sites; thick line: the middle half of all cases. p: Wilcoxon signed-rank test, two-sided, "
        "all cases pooled; n: cases."
    )
    title = f"Case by case against {baseline.label}"
    about = "; ".join(f"{w['row']}: mean {w['mean']:+.2f}, {w['test']}" for w in words)
    return Figure("differences", title, caption, data, spec, about=about)


def _panel(
    labels: list[str], dots: Data, words: Data, sites: list[str], title: str | None
) -> list[Spec]:
    """Layers of some rows: a dot for every case, the middle half, the mean, the test's words."""
    x: Spec = {"type": "quantitative", "title": title}
    y = vega.names("row", labels)
    shown = vega.row_filter(labels)

    def layer(values: Data, mark: Spec, **encoding: Spec | list[Spec]) -> Spec:
        rows = {"data": {"values": values}, "transform": shown["transform"]}
        return {**rows, **vega.layer(mark, **encoding)}

    zero = vega.layer({"type": "rule", "opacity": 0.6}, x={"datum": 0})
    layers = [{"data": {"values": [{}]}, **zero}]
    if dots:
        # Dots of a site in a lane of their own, so that few cover one another.
        lane = {site: 2 * k / max(1, len(sites) - 1) - 1 for k, site in enumerate(sites)}
        one_colour = {"color": vega.COLOURS[0]} if len(sites) > vega.MOST_LINES else {}
        on_top = {**vega.colours(sites), "legend": {"orient": "top"}}
        place = {"field": "place", "type": "quantitative", "scale": {"domain": [-1.2, 1.2]}}
        layers.append(
            layer(
                [{**item, "place": lane[item["site"]]} for item in dots],
                {"type": "circle", "size": 26, "opacity": 0.65, **one_colour},
                x={**x, "field": "value"},
                y=y,
                yOffset=place,
                **({} if one_colour else {"color": on_top}),
                tooltip=vega.tooltip(("row", ""), ("site", ""), ("case", ""), ("value", "+.2f")),
            )
        )
    tips = vega.tooltip(("row", ""), ("mean", "+.2f"), ("test", ""))
    half = {"type": "rule", "strokeWidth": 5, "opacity": 0.45}
    middle = {"type": "tick", "color": vega.INK, "thickness": 3, "height": 26}
    beside = {"type": "text", "align": "left", "x": 475}
    return [
        *layers,
        layer(words, half, y=y, x={**x, "field": "quarter"}, x2={"field": "three"}),
        layer(words, middle, y=y, x={**x, "field": "mean"}, tooltip=tips),
        layer(words, beside, y=y, text={"field": "test"}),
    ]


def _words(pairing: Pairing, test: Paired) -> dict[str, float | str]:
    """A row's mean, the middle half of its cases, and its test."""
    values = sorted(100 * gap for gap in pairing.gaps.values())
    quarter, _, three = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    said = {"mean": 100 * test.gain, "quarter": quarter, "three": three}
    return {"row": pairing.row.label, **said, "test": f"{told(test)}, n = {test.n}"}


def matrix_figure(results: Results) -> Figure | None:
    """K x K: every site's own model on every site's test cases."""
    kept, left = vega.panels(results.labels)
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
    tips = vega.tooltip(("row", ""), ("model", ""), ("tested on", ""), ("score", ".2f"))
    colour = vega.number("score", "score, %", scale={"scheme": "viridis", "zero": False})
    layers: list[Spec] = [
        {"mark": "rect", "encoding": {"x": x, "y": y, "color": colour, "tooltip": tips}}
    ]
    if len(sites) <= 6:
        values = [item["score"] for item in data]
        middle = (min(values) + max(values)) / 2
        dark = {"condition": {"test": f"datum.score > {middle}", "value": "#000"}, "value": "#fff"}
        (text,) = vega.tooltip(("score", ".1f"))
        mark = {"type": "text", "fontSize": 11}
        layers.append(vega.layer(mark, x=x, y=y, text=text, color=dark))
    drawn = [item for item in data if item["row"] in kept]
    panel = {"width": {"step": step}, "height": {"step": step}, "layer": layers}
    spec = vega.per_row(kept, drawn, panel, columns=3 if len(sites) <= 4 else 2)
    caption = (
        "The best local model of each site (rows) tested on each site's cases (columns). Local avg "
        f"is the mean of the diagonal, local gen of the rest.{left}"
    )
    return Figure("matrices", "Local models on every site", caption, data, spec)
