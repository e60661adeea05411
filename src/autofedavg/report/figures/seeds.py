"""Differences from the baseline over seeds, with their intervals."""

from __future__ import annotations

import statistics

from autofedavg.core.evaluation import SIGNIFICANT
from autofedavg.report.differences import shown_p
from autofedavg.report.families import families
from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.repeats import Results
from autofedavg.report.seed_gains import counted, holm, seed_gains

FULL, HOLLOW = f"p below {SIGNIFICANT} after correction", "not significant"
Reach = tuple[float, float]
FAR = 3  # times the median extent of the rows: further ones would squeeze all others


def seeds_figure(results: Results) -> Figure | None:
    """Every row's mean difference and 95 % interval; a full dot is significant after correction."""
    gains, baseline = seed_gains(results), results.baseline_row
    if not gains or baseline is None:
        return None
    sure = holm(gains)
    data: Data = [
        {
            "row": label,
            "points": gain.mean,
            "low": gain.interval.low,
            "high": gain.interval.high,
            "seeds": gain.n,
            "holm": f"p {shown_p(sure[label])}",
            "test": FULL if sure[label] < SIGNIFICANT else HOLLOW,
        }
        for label, gain in gains.items()
        if gain.interval
    ]
    named = f"points above or below {baseline.label}"

    reach, far = _reach(data)

    def panel(rows: list[str], last: bool) -> Spec:
        mine = [
            {**item, "off": f"{item['points']:+.2f}, off the axis" if item["row"] in far else ""}
            for item in data
            if item["row"] in rows
        ]
        layers = _layers(rows, named if last else None, reach if far else None)
        return {"width": 465, "height": {"step": 20}, "data": {"values": mine}, "layer": layers}

    spec = vega.by_family(families(results), list(gains), panel)
    caption = (
        f"Global test avg minus that of {baseline.label} with the same seed: mean over seeds, "
        f"Student's 95 % interval. Full dots: p below {SIGNIFICANT} after Holm's correction."
    )
    if far:
        caption += " A row far beyond the others has its number at the edge instead."
    title = f"Against {baseline.label}, over seeds"
    said = counted(gains, baseline.label)
    return Figure("seeds", title, caption, data, spec, about=said)


def _reach(data: Data) -> tuple[Reach, set[str]]:
    """The ends of the axis, and the rows that are too far away for it."""
    extents = {item["row"]: max(-item["low"], item["high"]) for item in data}
    some = [extent for extent in extents.values() if extent > 0]  # others are the baseline's rule
    limit = FAR * statistics.median(some or [0.0])
    near = [item for item in data if extents[item["row"]] <= limit]
    ends = [min([0.0, *(i["low"] for i in near)]), max([0.0, *(i["high"] for i in near)])]
    return (ends[0], ends[1]), extents.keys() - {item["row"] for item in near}


def _layers(labels: list[str], title: str | None, reach: Reach | None) -> list[Spec]:
    """A line at no difference, and for every row its interval and its mean.

    Rows beyond `reach`, the ends of the axis, have their number at its edge.
    """
    scale = {"scale": {"domain": list(reach)}} if reach else {}
    y, x = vega.names("row", labels), vega.number("points", title, **scale)
    rows = vega.row_filter(labels)["transform"]
    shown = {"transform": [*rows, {"filter": "datum.off === ''"}]}
    words = vega.tooltip(
        ("row", ""), ("points", "+.2f"), ("low", "+.2f"), ("high", "+.2f"), ("seeds", "d"),
        ("holm", ""),
    )  # fmt: skip
    full = {"test": f"datum.test === '{FULL}'", "value": 1}
    filled: Spec = {"condition": full, "value": 0}
    zero = vega.layer({"type": "rule", "opacity": 0.6}, x={"datum": 0})
    interval = vega.layer(
        {"type": "rule", "strokeWidth": 2, "opacity": 0.6},
        y=y, x={**x, "field": "low"}, x2={"field": "high"},
    )  # fmt: skip
    dot: Spec = {"type": "point", "size": 55, "color": vega.COLOURS[0], "fill": vega.COLOURS[0]}
    mean = vega.layer({**dot, "opacity": 1}, y=y, x=x, fillOpacity=filled, tooltip=words)
    layers = [{"data": {"values": [{}]}, **zero}, {**shown, **interval}, {**shown, **mean}]
    sides = (("left", 4, "<"), ("right", -4, ">"))
    for end, (side, apart, sign) in zip(reach or (), sides, strict=False):
        beyond = {"filter": f"datum.off !== '' && datum.points {sign} 0"}
        mark = {"type": "text", "align": side, "dx": apart}
        placed = vega.layer(mark, y=y, x={"datum": end}, text={"field": "off", "type": "nominal"})
        layers.append({"transform": [*rows, beyond], **placed})
    return layers
