"""Bars of what a round costs: bytes against the formula, seconds by purpose."""

from __future__ import annotations

from autofedavg.report.costs import BYTES, REST, SECONDS, bytes_per_round, extra_traffic
from autofedavg.report.costs import seconds_per_round as seconds
from autofedavg.report.families import families
from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.repeats import Results

NONE: Data = []


def traffic_figure(results: Results) -> Figure | None:
    """Measured traffic, with a mark where the formula puts it."""
    data: Data = []
    marks: Data = []
    for row in results.rows:
        found = bytes_per_round(row)
        data += [{"row": row.label, "kind": kind, "MB": value} for kind, value in found.items()]
        extra = extra_traffic(row)
        if extra and found:
            expected = found["training"] * (1 + extra[1])
            marks.append({"row": row.label, "kind": "formula", "MB": expected})
    if not data:
        return None
    spec = _bars(results, data, "MB", "MB a round, all sites, both ways", list(BYTES), marks)
    caption = (
        "Measured bytes by purpose. The bar across marks where training and learning together "
        "should end by the paper's formula, (K-1)/(2 t0) on top of FedAvg; S/t0 where the server "
        "learns; m/(D t0) for sketches."
    )
    return Figure("traffic", "Traffic a round against the formula", caption, data + marks, spec)


def _formula(marks: Data, labels: list[str]) -> Spec:
    """A bar across where the formula puts the end of training and learning."""
    across = vega.layer(
        {"type": "tick", "color": vega.INK, "thickness": 3, "height": 22},
        y={"field": "row", "type": "nominal", "sort": labels},
        x={"field": "MB", "type": "quantitative"},
        tooltip=vega.tooltip(("row", ""), ("kind", ""), ("MB", ".3f")),
    )
    shown = vega.row_filter(labels)["transform"]
    return {"data": {"values": marks}, "transform": shown, **across}


def time_figure(results: Results) -> Figure | None:
    """Where the seconds of a round go."""
    data = [
        {"row": row.label, "kind": kind, "seconds": value}
        for row in results.rows
        for kind, value in seconds(row).items()
    ]
    if not data:
        return None
    spec = _bars(results, data, "seconds", "seconds a round", [*SECONDS, REST])
    caption = "Mean over rounds. Rows that were run while the machine did other work look slower."
    return Figure("time", "Time a round", caption, data, spec)


def _bars(
    results: Results, data: Data, value: str, title: str, kinds: list[str], marks: Data = NONE
) -> Spec:
    """A bar for every row, and a mark across those that have one."""
    domain = {"domain": kinds, "range": list(vega.COLOURS[: len(kinds)])}

    def panel(labels: list[str], last: bool) -> Spec:
        bars = vega.layer(
            {"type": "bar"},
            y=vega.names("row", labels),
            x=vega.number(value, title if last else None, stack="zero"),
            color={"field": "kind", "type": "nominal", "title": None, "scale": domain},
            order={"field": "order"},
            tooltip=vega.tooltip(("row", ""), ("kind", ""), (value, ".3f")),
        )
        mine, across = ([item for item in part if item["row"] in labels] for part in (data, marks))
        values = [{**item, "order": kinds.index(item["kind"])} for item in mine]
        shown = vega.row_filter(labels)["transform"]
        layers = [{"data": {"values": values}, "transform": shown, **bars}]
        # An empty layer has no extent, and Vega warns of it.
        layers += [_formula(across, labels)] if across else []
        return {"width": 460, "height": {"step": 24}, "layer": layers}

    return vega.by_family(families(results), results.labels, panel)
