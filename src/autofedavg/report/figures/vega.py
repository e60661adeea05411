"""Parts that the figures' Vega-Lite specifications share: encodings, panels, sliders, thinning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Spec = dict[str, Any]
Data = list[dict[str, Any]]

WIDTH, HEIGHT = 560, 280
MOST_MARKS = 3000  # data rows drawn in one figure; the table behind it keeps all
MOST_PANELS = 24
MOST_FIGURES = 8  # of one kind, a row each
MOST_LINES = 10  # sites that colours can tell apart; more are drawn as a heat map
SLIDER = "round"  # parameter that sliders set
SHOWN = "shown_rows"  # parameter that the page's checkboxes set

# Okabe and Ito's colours without those that vanish on white or black paper; a lighter blue.
COLOURS = (
    "#1F83C7", "#E69F00", "#009E73", "#CC79A7", "#56B4E9",
    "#D55E00", "#8A7FD6", "#999933", "#AA4466", "#888888",
)  # fmt: skip
# Ink takes the colour of the text around it: dark on paper, light on a dark page.
INK = "currentColor"


def thinned(data: Data, most: int = MOST_MARKS) -> tuple[Data, int]:
    """Every n-th round, the last one always, so that at most about `most` rows are left; and n."""
    rounds = sorted({row["t"] for row in data})
    if len(data) <= most or len(rounds) < 3:
        return data, 1
    per_round = max(1, len(data) // len(rounds))
    stride = -(-len(rounds) // max(2, most // per_round))
    kept = set(rounds[::-1][::stride])
    return [row for row in data if row["t"] in kept], stride


def every(stride: int) -> str:
    """What a caption says of rounds that are not drawn."""
    return "" if stride == 1 else f" One round in {stride} is drawn; the CSV file has all."


def few(rows: int) -> str:
    """What a caption says where only the first rows of a kind have a figure."""
    return f" The first {MOST_FIGURES} of {rows} rows have this figure." * (rows > MOST_FIGURES)


def dots(marks: int, size: int) -> bool | Spec:
    """Dots on a line, as long as they can be told apart."""
    return {"size": size} if marks <= 900 else False


def row_filter(labels: Sequence[str]) -> Spec:
    """The parameter and the transform by which the page shows and hides rows."""
    return {
        "params": [{"name": SHOWN, "value": list(labels)}],
        "transform": [{"filter": f"indexof({SHOWN}, datum.row) >= 0"}],
    }


def by_family(
    families: Sequence[tuple[str, list[str]]],
    labels: Sequence[str],
    panel: Callable[[list[str], bool], Spec],
) -> Spec:
    """Rows below one another: in one panel, or in one for each family.

    Args:
        families: each with its rows; empty for one panel.
        labels: all rows.
        panel: the panel of some rows, and whether it is the last, which names the axis.
    """
    params = {"params": row_filter(labels)["params"]}
    if not families:
        return {**params, **panel(list(labels), True)}
    parts = [(name, [label for label in rows if label in labels]) for name, rows in families]
    parts = [(name, rows) for name, rows in parts if rows]
    drawn = [
        {
            "title": {"text": name.capitalize(), "frame": "group"},
            **panel(rows, number == len(parts)),
        }
        for number, (name, rows) in enumerate(parts, 1)
    ]
    return {**params, "vconcat": drawn, "resolve": {"scale": {"x": "shared"}}}


def panels(labels: Sequence[str]) -> tuple[list[str], str]:
    """The rows that get a panel of their own, and what a caption says of the others."""
    kept = list(labels)[:MOST_PANELS]
    left = len(labels) - len(kept)
    said = f" The first {MOST_PANELS} of {len(labels)} rows; the CSV file has all." if left else ""
    return kept, said


def per_row(labels: Sequence[str], data: Data, panel: Spec, columns: int = 2) -> Spec:
    """A panel for each of these rows."""
    return {
        **row_filter(labels),
        "data": {"values": data},
        "columns": columns,
        "facet": names("row", labels),
        "spec": panel,
    }


def names(field: str, order: Sequence[str]) -> Spec:
    """Names in this order; they say themselves what they are."""
    return {"field": field, "type": "nominal", "title": None, "sort": list(order)}


def number(field: str, title: str | None, **more: Any) -> Spec:
    """A number on an axis, as a colour or as text."""
    return {"field": field, "type": "quantitative", "title": title, **more}


ROUND = number("t", "round", axis={"tickMinStep": 1})
FROM_LOWEST: Spec = {"zero": False}  # a scale


def layer(mark: Spec, **encoding: Spec | list[Spec]) -> Spec:
    """Marks, and what they show by place, colour and words."""
    return {"mark": mark, "encoding": encoding}


def colours(sites: Sequence[str]) -> Spec:
    """Sites by colour, always the same one."""
    return {
        "field": "site",
        "type": "nominal",
        "title": "site",
        "scale": {"domain": list(sites), "range": list(COLOURS[: len(sites)])},
    }


def slider(first: int, last: int, step: int = 1) -> Spec:
    """A slider through rounds, at the last one to begin with."""
    bind = {"input": "range", "min": first, "max": last, "step": step, "name": "round "}
    return {"name": SLIDER, "value": last, "bind": bind}


def tooltip(*fields: tuple[str, str]) -> list[Spec]:
    """Fields shown on hovering: (name, format or "" for text)."""
    return [
        {"field": name, "type": "quantitative", "format": shape}
        if shape
        else {"field": name, "type": "nominal"}
        for name, shape in fields
    ]
