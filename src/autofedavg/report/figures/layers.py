"""Layer-wise weights as a heat map over layers and rounds."""

from __future__ import annotations

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.series import first, layer_wise, whose
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.repeats import Results, Row, stem


def layer_figures(results: Results) -> list[Figure]:
    """A figure for every row with a weight per layer."""
    rows = [row for row in results.rows if layer_wise(row)]
    return [
        _figure(list(results.sites), row, vega.few(len(rows))) for row in rows[: vega.MOST_FIGURES]
    ]


def _figure(sites: list[str], row: Row, said: str) -> Figure:
    chosen = first(row)
    last = chosen.rounds[-1]["alpha"]
    P = len(last[0])
    known = chosen.environment.get("layers") or []
    layers = [f"{p + 1} {known[p]}" if len(known) == P else f"layer {p + 1}" for p in range(P)]
    data: Data = [
        {"row": row.label, "t": line["t"], "site": site, "layer": layer, "alpha": value}
        for line in chosen.rounds
        if line["alpha"]
        for site, per_layer in zip(sites, line["alpha"], strict=True)
        for layer, value in zip(layers, per_layer, strict=False)
    ]
    drawn, stride = vega.thinned(data)
    spec: Spec = {
        "data": {"values": drawn},
        "columns": 3 if len(sites) <= 3 else 4,
        "facet": vega.names("site", sites),
        "spec": {
            "width": 180,
            "height": {"step": max(4, min(16, 320 // P))},
            "mark": {"type": "rect"},
            "encoding": {
                "x": {"field": "t", "type": "ordinal", "title": "round",
                      "axis": {"labelOverlap": True, "labelAngle": 0}},
                "y": {**vega.names("layer", layers),
                      "axis": {"labelOverlap": True, "labelLimit": 150}},
                "color": vega.number("alpha", "alpha", scale={"domainMin": 0, "scheme": "viridis"}),
                "tooltip": vega.tooltip(("site", ""), ("layer", ""), ("t", "d"), ("alpha", ".3f")),
            },
        },
    }  # fmt: skip
    spread = max(max(per_layer) - min(per_layer) for per_layer in last)
    return Figure(
        f"layers-{stem(row.name)}",
        f"Layer-wise weights: {row.label}",
        f"Layers from the input (top) to the output, rounds from left to right.{whose(row)}"
        f"{vega.every(stride)}{said}",
        data,
        spec,
        about=f"{row.label}: in the last round a site's weight differs by up to {spread:.2f} "
        f"between its {P} layers.",
        row=row.label,
    )
