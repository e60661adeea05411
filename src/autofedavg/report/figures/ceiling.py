"""What other weights could gain over the rounds."""

from __future__ import annotations

from autofedavg.report.ceiling import FITTED, OTHERS, POINTS, ceilings, in_brief, told
from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.vega import Data
from autofedavg.report.repeats import Results

KINDS = {**FITTED, **OTHERS}


def ceiling_figure(results: Results) -> Figure | None:
    """Points gained over FedAvg's weights, a panel for every row whose ceiling was measured."""
    lines = told(ceilings(results))
    data: Data = [
        {
            "row": line.label,
            "t": line.t,
            "split": line.split,
            "weights": words,
            "points": POINTS * line.gains[kind].mean,
            "low": POINTS * line.gains[kind].low,
            "high": POINTS * line.gains[kind].high,
        }
        for line in lines
        for kind, words in KINDS.items()
        if kind in line.gains
    ]
    if not data:
        return None
    kinds = [words for words in KINDS.values() if any(item["weights"] == words for item in data)]
    labels, left = vega.panels(list(dict.fromkeys(item["row"] for item in data)))
    colour = {**vega.names("weights", kinds), "scale": {"domain": kinds}}
    y = vega.number("points", "points above FedAvg's weights", scale=vega.FROM_LOWEST)
    words = vega.tooltip(
        ("weights", ""),
        ("t", "d"),
        ("split", ""),
        ("points", ".2f"),
        ("low", ".2f"),
        ("high", ".2f"),
    )
    zero = vega.layer({"type": "rule", "opacity": 0.4}, y={"datum": 0})
    layers = [
        {"data": {"values": [{}]}, **zero},
        vega.layer(
            {"type": "rule", "strokeWidth": 1.5, "opacity": 0.5},
            x=vega.ROUND, y={**y, "field": "low"}, y2={"field": "high"}, color=colour,
        ),
        vega.layer(
            {"type": "line", "strokeWidth": 2, "point": {"size": 30}},
            x=vega.ROUND, y=y, color=colour, tooltip=words,
        ),
    ]  # fmt: skip
    panel = {"width": vega.WIDTH // 2, "height": vega.HEIGHT - 60, "layer": layers}
    drawn = [item for item in data if item["row"] in labels]
    caption = (
        "Points gained over FedAvg's weights by other weights of the same sites' models of a "
        "round, with the 95 % interval over paired cases. Network-wise, layer-wise and scaled "
        "weights are an oracle's: fitted to half of the cases, scored on the other half."
        f"{left}"
    )
    about = " ".join(in_brief(results))
    spec = vega.per_row(labels, drawn, panel)
    return Figure("ceiling", "What other weights could gain", caption, data, spec, about=about)
