"""Curves over the rounds: the weights (Figure 3a), the validation score (3b), the loss."""

from __future__ import annotations

from collections.abc import Callable

from autofedavg.report.figures.figure import (
    HEIGHT,
    MOST_LINES,
    WIDTH,
    Data,
    Figure,
    Spec,
    colours,
    dots,
    every,
    panels,
    row_filter,
    thinned,
    tooltip,
)
from autofedavg.report.figures.series import (
    alpha_series,
    learns,
    loss_series,
    means,
    validation_series,
)
from autofedavg.report.read import Results, Row

MOST_CURVES = 20
ROUND: Spec = {"field": "t", "type": "quantitative", "title": "round", "axis": {"tickMinStep": 1}}


def alpha_figure(results: Results) -> Figure | None:
    """How much each site counts, round by round."""
    rows = [row for row in results.rows if learns(row)]
    text = (
        "Aggregation weights after each round, as used to average the models; layer-wise weights "
        "as their mean over layers. Fixed weights (FedAvg, FedProx) do not move and are in the "
        "table of weights."
    )
    return _per_site(
        results, rows, "alpha", "Aggregation weights over the rounds (Figure 3a)", text,
        lambda row: alpha_series(results, row), "alpha", ".3f", [0, None],
    )  # fmt: skip


def loss_figure(results: Results) -> Figure | None:
    """Every site's training loss, round by round."""
    text = "Mean training loss of each site's local steps."
    return _per_site(
        results, list(results.rows), "loss", "Training loss over the rounds", text,
        loss_series, "loss", ".4f", [None, None],
    )  # fmt: skip


def validation_figure(results: Results) -> Figure | None:
    """The global model's validation score, row against row."""
    data = [item for row in results.rows for item in validation_series(row)]
    if not data:
        return None
    drawn = means(data, "score")
    labels, left = _best(results, drawn)
    drawn, stride = thinned([item for item in drawn if item["row"] in labels])
    several = any(item["repeats"] > 1 for item in drawn)
    band = " The band spans the repeats." if several else ""
    colour: Spec = {"field": "row", "type": "nominal", "title": None, "sort": labels}
    colour["scale"] = {"domain": labels}
    y = {"type": "quantitative", "title": "validation score, %", "scale": {"zero": False}}
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "strokeWidth": 2, "point": dots(len(drawn), 18)},
            "encoding": {
                "x": ROUND,
                "y": {**y, "field": "score"},
                "color": colour,
                "strokeDash": {
                    "condition": {
                        "test": f"indexof({_fixed(results)}, datum.row) >= 0",
                        "value": [5, 3],
                    },
                    "value": [1, 0],
                },
                "tooltip": tooltip(("row", ""), ("t", "d"), ("score", ".2f")),
            },
        }
    ]
    if several:
        encoding = {"x": ROUND, "color": colour, "y2": {"field": "greatest"}}
        layers.insert(
            0,
            {
                "mark": {"type": "area", "opacity": 0.15},
                "encoding": {**encoding, "y": {**y, "field": "least"}},
            },
        )
    spec = {
        **row_filter(labels),
        "data": {"values": drawn},
        "width": WIDTH,
        "height": HEIGHT + 40,
        "layer": layers,
    }
    caption = (
        "Mean over sites of the global model's score on their validation cases, after each round; "
        f"dashed: rows with fixed weights.{band}{left}{every(stride)}"
    )
    return Figure(
        "validation", "Validation score over the rounds (Figure 3b)", caption, data, spec,
        about=_ends(drawn),
    )  # fmt: skip


def _best(results: Results, drawn: Data) -> tuple[list[str], str]:
    """The rows that curves can be told apart of: the baseline and those that end highest."""
    last = {item["row"]: item["score"] for item in sorted(drawn, key=lambda item: item["t"])}
    labels = [row.label for row in results.rows if row.label in last]
    if len(labels) <= MOST_CURVES:
        return labels, ""
    baseline = results.row(results.baseline)
    first = baseline.label if baseline else ""
    kept = sorted(labels, key=lambda label: (label != first, -last[label]))[:MOST_CURVES]
    said = f" The baseline and the {MOST_CURVES - 1} rows of {len(labels)} that end highest."
    return [label for label in labels if label in kept], said


def _fixed(results: Results) -> list[str]:
    return [row.label for row in results.rows if not learns(row)]


def _ends(drawn: Data) -> str:
    """The last values in words."""
    last = {item["row"]: item for item in sorted(drawn, key=lambda item: item["t"])}
    said = ", ".join(f"{row} {item['score']:.1f}" for row, item in last.items())
    return f"Validation score after the last common round: {said}."


def _per_site(
    results: Results,
    rows: list[Row],
    name: str,
    title: str,
    text: str,
    series: Callable[[Row], Data],
    value: str,
    shape: str,
    limits: list[float | None],
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
    encoding: Spec
    if many:
        mark: Spec = {"type": "rect"}
        encoding = {
            "x": {**ROUND, "type": "ordinal", "axis": {"labelOverlap": True}},
            "y": {"field": "site", "type": "nominal", "title": None, "sort": sites},
            "color": {"field": value, "type": "quantitative", "title": value},
        }
    else:
        mark = {"type": "line", "point": dots(len(drawn), 14), "strokeWidth": 2}
        scale: Spec = {"zero": limits[0] == 0}
        encoding = {
            "x": ROUND,
            "y": {"field": value, "type": "quantitative", "title": value, "scale": scale},
            "color": colours(sites),
        }
    tall = 12 * len(sites) if many else 150
    spec = {
        **row_filter(kept),
        "data": {"values": drawn},
        "columns": 2,
        "facet": {"field": "row", "type": "nominal", "title": None, "sort": kept},
        "spec": {
            "width": 250,
            "height": tall,
            "mark": mark,
            "encoding": {**encoding, "tooltip": tips},
        },
    }
    repeats = max(item["repeats"] for item in drawn)
    mean = " Means over the repeats that have the round." if repeats > 1 else ""
    return Figure(name, title, f"{text}{mean}{left}{every(stride)}", data, spec,
                  about=_last_values(drawn, value, shape, many))  # fmt: skip


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
