"""Layer-wise weights as a heat map over layers and rounds."""

from __future__ import annotations

from autofedavg.report.figures.figure import (
    MOST_FIGURES,
    Data,
    Figure,
    Spec,
    every,
    few,
    thinned,
    tooltip,
)
from autofedavg.report.figures.series import first, layer_wise, which
from autofedavg.report.read import Results, Row
from autofedavg.report.values import stem


def layer_figures(results: Results) -> list[Figure]:
    """A figure for every row with a weight per layer."""
    rows = [row for row in results.rows if layer_wise(row)]
    said = few([row.label for row in rows])
    return [_figure(results, row, said) for row in rows[:MOST_FIGURES]]


def _figure(results: Results, row: Row, said: str) -> Figure:
    chosen = first(row)
    P = len(chosen.rounds[-1]["alpha"][0])
    known = chosen.environment.get("layers") or []
    names = [str(name) for name in known] if len(known) == P else []
    layers = [f"{p + 1} {names[p]}" if names else f"layer {p + 1}" for p in range(P)]
    data: Data = [
        {"row": row.label, "t": line["t"], "site": site, "layer": layers[p], "alpha": value}
        for line in chosen.rounds
        if line["alpha"]
        for site, per_layer in zip(results.sites, line["alpha"], strict=True)
        for p, value in enumerate(per_layer)
    ]
    drawn, stride = thinned(data)
    spec: Spec = {
        "data": {"values": drawn},
        "columns": 3 if len(results.sites) <= 3 else 4,
        "facet": {"field": "site", "type": "nominal", "title": None, "sort": list(results.sites)},
        "spec": {
            "width": 180,
            "height": {"step": max(4, min(16, 320 // P))},
            "mark": {"type": "rect"},
            "encoding": {
                "x": {"field": "t", "type": "ordinal", "title": "round",
                      "axis": {"labelOverlap": True, "labelAngle": 0}},
                "y": {"field": "layer", "type": "nominal", "title": None, "sort": layers,
                      "axis": {"labelOverlap": True, "labelLimit": 150}},
                "color": {"field": "alpha", "type": "quantitative", "title": "alpha",
                          "scale": {"domainMin": 0, "scheme": "viridis"}},
                "tooltip": tooltip(("site", ""), ("layer", ""), ("t", "d"), ("alpha", ".3f")),
            },
        },
    }  # fmt: skip
    seed = which(row)
    whose = f" From {seed}." if seed else ""
    last = chosen.rounds[-1]["alpha"]
    spread = max(max(per_layer) - min(per_layer) for per_layer in last)
    return Figure(
        f"layers-{stem(row.name)}",
        f"Layer-wise weights: {row.label}",
        f"Layers from the input (top) to the output, rounds from left to right.{whose}"
        f"{every(stride)}{said}",
        data,
        spec,
        about=f"{row.label}: in the last round a site's weight differs by up to {spread:.2f} "
        f"between its {P} layers.",
        row=row.label,
    )
