"""Curves over the rounds, a panel per row: the weights (Figure 3a), the losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.series import alpha_series, loss_series, means
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.over_rounds import calls_of
from autofedavg.report.repeats import Results, Row

WIDE, TALL, LETTERS = 250, 150, 12  # pixels of a panel, and of a line of words beside its curves
FIRST, LAST = "first steps", "last steps"


def alpha_figure(results: Results) -> Figure | None:
    """How much each site counts, round by round."""
    rows = [row for row in results.rows if row.learns]
    data = [item for row in rows for item in alpha_series(results, row)]
    title = "Aggregation weights over the rounds (Figure 3a)"
    text = (
        "Aggregation weights after each round; in a round in which a site did not answer, those of "
        "the others were scaled to a sum of one. Layer-wise weights as their mean over layers. "
        "Fixed weights (FedAvg, FedProx) do not move and are in the table of weights."
    )
    return _per_site("alpha", title, text, data, rows, list(results.sites), zero=True)


def loss_figure(results: Results) -> Figure | None:
    """Every site's training loss, round by round."""
    data = [item for row in results.rows for item in loss_series(row)]
    title, text = "Training loss over the rounds", "Mean training loss of each site's local steps."
    return _per_site("loss", title, text, data, results.rows, list(results.sites), zero=False)


def _per_site(
    value: str,
    title: str,
    text: str,
    data: Data,
    rows: Sequence[Row],
    sites: list[str],
    *,
    zero: bool,
) -> Figure | None:
    """A panel per row: a line per site, or with many sites a heat map."""
    kept, left = vega.panels([row.label for row in rows])
    drawn = means([item for item in data if item["row"] in kept], value, "site")
    if not drawn:
        return None
    drawn, stride = vega.thinned(drawn)
    many = len(sites) > vega.MOST_LINES
    tips = vega.tooltip(("row", ""), ("site", ""), ("t", "d"), (value, ".3f"))
    if many:
        squares = vega.layer(
            {"type": "rect"},
            x={**vega.ROUND, "type": "ordinal", "axis": {"labelOverlap": True}},
            y=vega.names("site", sites),
            color=vega.number(value, value),
            tooltip=tips,
        )
        panel = {"width": WIDE, "height": 12 * len(sites), **squares}
        spec = vega.per_row(kept, drawn, panel)
    else:
        drawn = _with_places(drawn, value, zero)
        lines = _lines(sites, value, zero, len(drawn), tips)
        spec = vega.per_row(kept, drawn, {"width": WIDE, "height": TALL, "layer": lines})
        rounds = sorted({item["t"] for item in drawn})
        spec["params"].append(vega.slider(rounds[0], rounds[-1], stride))
    repeats = max(item["repeats"] for item in drawn)
    mean = " Means over the rounds that all finished repeats have." if repeats > 1 else ""
    caption = f"{text}{mean}{left}{vega.every(stride)}"
    return Figure(value, title, caption, data, spec, about=_last_values(drawn, value, many))


def _lines(sites: list[str], value: str, zero: bool, marks: int, tips: list[Spec]) -> list[Spec]:
    """Lines, and the values at the slider's round printed beside it."""
    y = vega.number(value, value, scale={"zero": zero})
    at: Spec = {"filter": f"datum.t == {vega.SLIDER}"}
    line = {"type": "line", "point": vega.dots(marks, 14), "strokeWidth": 2}
    rule = {"type": "rule", "opacity": 0.35}
    text = {"type": "text", "align": "left", "dx": 5, "fontSize": 11, "color": vega.INK}
    (shown,) = vega.tooltip((value, ".3f"))
    return [
        vega.layer(line, x=vega.ROUND, y=y, color=vega.colours(sites), tooltip=tips),
        {
            "transform": [at, {"aggregate": [{"op": "min", "field": "t", "as": "t"}]}],
            **vega.layer(rule, x=vega.ROUND),
        },
        {
            "transform": [at],
            **vega.layer(text, x=vega.ROUND, y={**y, "field": "place"}, text=shown),
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


def _last_values(drawn: Data, value: str, many: bool) -> str:
    """The last values in words, for those who do not see the curves."""
    parts = []
    for row, values in _last(drawn, "site", value).items():
        top = sorted(values, key=lambda site: -values[site])[:3] if many else list(values)
        parts.append(f"{row}: " + ", ".join(f"{site} {values[site]:.3f}" for site in top))
    return f"Last {value}: {'; '.join(parts)}."


def _last(drawn: Data, key: str, value: str) -> dict[str, dict[str, float]]:
    """Row -> key -> value, in the last round that has it."""
    last: dict[str, dict[str, float]] = {}
    for item in sorted(drawn, key=lambda item: item["t"]):
        last.setdefault(item["row"], {})[item[key]] = item[value]
    return last


def learning_figure(results: Results) -> Figure | None:
    """The loss that the weights are learned by, in the first and last steps of every call."""
    data: Data = [
        {"row": row.label, "seed": call.seed, "fold": call.fold, "t": call.t, "steps": name,
         "loss": loss}
        for row in results.rows
        for call in calls_of(row)
        for name, loss in ((FIRST, call.first), (LAST, call.last))
    ]  # fmt: skip
    kept, left = vega.panels(list(dict.fromkeys(item["row"] for item in data)))
    drawn = means([item for item in data if item["row"] in kept], "loss", "steps")
    if not drawn:
        return None
    # Rows may learn in different rounds: each keeps some of its own.
    few = vega.MOST_MARKS // len(kept)
    thin = [vega.thinned([item for item in drawn if item["row"] == row], few) for row in kept]
    drawn = [item for part, _ in thin for item in part]
    line = vega.layer(
        {"type": "line", "point": vega.dots(len(drawn), 18), "strokeWidth": 2},
        x=vega.ROUND,
        y=vega.number("loss", "loss", scale=vega.FROM_LOWEST),
        color=vega.names("steps", [FIRST, LAST]),
        tooltip=vega.tooltip(("row", ""), ("steps", ""), ("t", "d"), ("loss", ".4f")),
    )
    panel = {"width": WIDE, "height": TALL, **line}
    several = any(item["repeats"] > 1 for item in drawn)
    thinner = any(stride > 1 for _, stride in thin)
    caption = (
        "Mean over sites of the loss on the batches that the weights are learned on, in the first "
        "and in the last quarter of every call's steps: what a call gains is between the lines."
        " With several steps a message, a message counts as one."
        f"{' Means over repeats.' * several}{left}"
        f"{' Not all calls of all rows are drawn; the CSV file has all.' * thinner}"
    )
    title = "Loss that the weights are learned by, at both ends of a call"
    ends = "; ".join(
        f"{row}: {losses[FIRST]:.4f}, then {losses[LAST]:.4f}"
        for row, losses in _last(drawn, "steps", "loss").items()
    )
    about = f"Loss in the first and last steps of the last call: {ends}."
    return Figure("learning", title, caption, data, vega.per_row(kept, drawn, panel), about=about)
