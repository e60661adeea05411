"""What a single setting does: scores of rows that differ in nothing else (Figure 4 for t0)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from autofedavg.core.evaluation import mean_and_spread
from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.repeats import Results, Row, flat, shared_settings
from autofedavg.report.tables import mean_global

INTERVAL = "method.t0"
WIDE = 10.0  # from here on between least and greatest, values are drawn by their orders


def setting_figures(results: Results) -> list[Figure]:
    """Global test avg against every number that rows of the study differ in alone."""
    data = list(_points(results.rows))
    paths = list(dict.fromkeys(str(point["setting"]) for point in data))
    baseline = results.baseline_row
    level = mean_global(baseline) if baseline else None
    caption = (
        "Rows on one line differ in this setting alone. Whiskers: one standard deviation over the "
        "repeats; none with a single one."
    )
    if baseline and level is not None:
        caption += f" Dashed: {baseline.label}."
    made = []
    if INTERVAL in paths:
        mine = [point for point in data if point["setting"] == INTERVAL]
        spec = {**_shared(mine), **_panel(mine, mine, level, 420, vega.HEIGHT)}
        made.append(Figure("interval", "The interval t0 (Figure 4)", caption, mine, spec))
    if set(paths) - {INTERVAL}:
        parts = {path: [point for point in data if point["setting"] == path] for path in paths}
        small = [_panel(part, data, level, 190, 170) for part in parts.values()]
        about = "; ".join(
            f"{path}: " + ", ".join(f"{point['value']:g} {point['score']:.2f}" for point in part)
            for path, part in parts.items()
        )
        spec = {**_shared(data), "columns": 3, "concat": small}
        title = "What single settings change"
        made.append(Figure("settings", title, caption, data, spec, about=about))
    return made


def _points(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Rows that differ in one number alone: a line for every setting of the others."""
    settings = [
        {path: value for path, value in flat(config) if path not in ("name", "label")}
        for config in shared_settings(row.repeats[0].config for row in rows)
    ]
    found: dict[str, set[float]] = {}
    for known in settings:
        for path, value in known.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(path, set()).add(value)
    for path in (path for path, values in found.items() if len(values) > 1):
        groups: dict[str, list[tuple[Row, float]]] = {}
        for row, known in zip(rows, settings, strict=True):
            value, others = known.get(path), {p: v for p, v in known.items() if p != path}
            if isinstance(value, int | float) and mean_global(row) is not None:
                groups.setdefault(json.dumps(others, sort_keys=True), []).append((row, value))
        for group in groups.values():
            if len({value for _, value in group}) > 1:
                line = group[0][0].label
                for row, value in sorted(group, key=lambda item: item[1]):
                    yield {"row": row.label, "setting": path, "line": line, "value": value,
                           **_scored(row)}  # fmt: skip


def _scored(row: Row) -> dict[str, float]:
    """A row's score with its whiskers."""
    scores = [100 * s.global_test_avg for s in row.summaries if s.global_test_avg is not None]
    mean, spread = mean_and_spread(scores)
    ends = {"low": mean - (spread or 0), "high": mean + (spread or 0)}
    return {"score": mean, **ends, "repeats": len(scores)}


def _shared(data: Data) -> Spec:
    labels = list(dict.fromkeys(point["row"] for point in data))
    return {**vega.row_filter(labels), "data": {"values": data}}


def _panel(data: Data, all_data: Data, level: float | None, width: int, height: int) -> Spec:
    """One setting; the scale of scores is that of all panels and of the baseline."""
    path = str(data[0]["setting"])
    values = sorted({point["value"] for point in data})
    heights = [point[key] for point in all_data for key in ("low", "high")]
    heights += [] if level is None else [level]
    x = vega.number("value", path.removeprefix("method."),
               scale={**_scale(values), "padding": 12, "nice": False},
               axis={"values": values, "labelOverlap": True, "format": ".3~g"})  # fmt: skip
    y: Spec = {"type": "quantitative", "title": "global test avg, %",
               "scale": {"zero": False, "domain": [min(heights), max(heights)],
                         "nice": True}}  # fmt: skip
    colour = {**vega.names("line", list(dict.fromkeys(point["line"] for point in data))),
              "legend": {"orient": "bottom", "columns": 1, "labelLimit": 480}}  # fmt: skip
    tips = vega.tooltip(("row", ""), ("value", "g"), ("score", ".2f"), ("repeats", "d"))
    only = {"transform": [{"filter": {"field": "setting", "equal": path}}]}
    ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    rule = {"type": "rule", "opacity": 0.7, "strokeWidth": 2}
    line = {"type": "line", "point": {"size": 50}}
    dashed = {"type": "rule", "strokeDash": [4, 4], "color": vega.COLOURS[-1]}
    layers = [
        {**only, **vega.layer(rule, x=x, **ends, color=colour)},
        {**only, **vega.layer(line, x=x, y={**y, "field": "score"}, color=colour, tooltip=tips)},
    ]
    if level is not None:
        across = vega.layer(dashed, y={**y, "datum": level})
        layers.insert(0, {"data": {"values": [{}]}, **across})
    return {"width": width, "height": height, "layer": layers}


def _scale(values: Sequence[float]) -> Spec:
    """By orders where values span some; a zero then lies one step of the smallest away."""
    positive = [value for value in values if value > 0]
    if values[0] < 0 or values[-1] < WIDE * min(positive):
        return {"zero": False}
    if values[0] > 0:
        return {"type": "log"}
    return {"type": "symlog", "constant": min(positive)}
