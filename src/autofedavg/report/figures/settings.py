"""What a single setting does: scores of rows that differ in nothing else (Figure 4 for t0)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from autofedavg.core.evaluation import mean_and_spread
from autofedavg.report.figures.figure import (
    COLOURS,
    HEIGHT,
    Data,
    Figure,
    Spec,
    row_filter,
    tooltip,
)
from autofedavg.report.read import Results, Row
from autofedavg.report.tables import mean_global
from autofedavg.report.values import flat, shared_settings

INTERVAL = "method.t0"
WIDE = 10.0  # from here on between least and greatest, values are drawn by their orders


def setting_figures(results: Results) -> list[Figure]:
    """Global test avg against every number that rows of the study differ in alone."""
    data = [point for path in _numbers(results.rows) for point in _points(results.rows, path)]
    paths = list(dict.fromkeys(str(point["setting"]) for point in data))
    made = []
    if INTERVAL in paths:
        mine = [point for point in data if point["setting"] == INTERVAL]
        spec = _panel(mine, results, _heights(mine, results), 420, HEIGHT)
        title = "The interval t0 (Figure 4)"
        made.append(Figure("interval", title, _caption(results), mine, {**_rows(mine), **spec}))
    if set(paths) - {INTERVAL}:
        made.append(_together(data, paths, results))
    return made


def _together(data: Data, paths: Sequence[str], results: Results) -> Figure:
    """All settings side by side, their scores on one scale."""
    heights = _heights(data, results)
    parts = ([point for point in data if point["setting"] == path] for path in paths)
    spec: Spec = {
        **_rows(data),
        "columns": 3,
        "concat": [_panel(part, results, heights, 190, 170) for part in parts],
    }
    about = "; ".join(
        f"{path}: "
        + ", ".join(f"{p['value']:g} {p['score']:.2f}" for p in data if p["setting"] == path)
        for path in paths
    )
    title = "What single settings change"
    return Figure("settings", title, _caption(results), data, spec, None, about)


def _caption(results: Results) -> str:
    baseline = results.row(results.baseline)
    dashed = f" Dashed: {baseline.label}." if baseline and _level(results) is not None else ""
    return (
        "Rows on one line differ in this setting alone. Whiskers: one standard deviation over the "
        f"repeats; none with a single one.{dashed}"
    )


def _level(results: Results) -> float | None:
    """The score of the row that others are tested against."""
    baseline = results.row(results.baseline)
    return mean_global(baseline) if baseline else None


def _numbers(rows: Sequence[Row]) -> list[str]:
    """Paths of the settings that are numbers, and not everywhere the same one."""
    found: dict[str, set[float]] = {}
    for settings in _settings(rows):
        for path, value in settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(path, set()).add(value)
    return [path for path, values in found.items() if len(values) > 1]


def _points(rows: Sequence[Row], path: str) -> Iterator[dict[str, float | str]]:
    """Rows that differ in one setting alone: a line for every setting of the others."""
    groups: dict[str, list[tuple[Row, float]]] = {}
    for row, values in zip(rows, _settings(rows), strict=True):
        value = values.pop(path, None)
        if isinstance(value, int | float) and mean_global(row) is not None:
            groups.setdefault(json.dumps(values, sort_keys=True), []).append((row, value))
    for group in groups.values():
        if len({value for _, value in group}) > 1:
            first, _ = group[0]
            for row, value in sorted(group, key=lambda item: item[1]):
                yield _point(row, path, first.label, value)


def _point(row: Row, path: str, line: str, value: float) -> dict[str, float | str]:
    scores = [100 * s.global_test_avg for s in row.summaries if s.global_test_avg is not None]
    mean, spread = mean_and_spread(scores)
    return {
        "row": row.label,
        "setting": path,
        "line": line,
        "value": value,
        "score": mean,
        "low": mean - (spread or 0),
        "high": mean + (spread or 0),
        "repeats": len(scores),
    }


def _settings(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Of every row, its settings by their dotted paths."""
    configs = shared_settings(row.repeats[0].config for row in rows)
    return [
        {path: value for path, value in flat(config) if path not in ("name", "label")}
        for config in configs
    ]


def _rows(data: Data) -> Spec:
    shown = row_filter(list(dict.fromkeys(point["row"] for point in data)))
    return {**shown, "data": {"values": data}}


def _heights(data: Data, results: Results) -> tuple[float, float]:
    """The scores that panels show, so that all show the same."""
    values = [point[key] for point in data for key in ("low", "high")]
    level = _level(results)
    known = values if level is None else [*values, level]
    return min(known), max(known)


def _panel(
    data: Data, results: Results, heights: tuple[float, float], width: int, height: int
) -> Spec:
    path = str(data[0]["setting"])
    values = sorted({point["value"] for point in data})
    x: Spec = {"field": "value", "type": "quantitative", "title": path.removeprefix("method."),
               "scale": {**_scale(values), "padding": 12, "nice": False},
               "axis": {"values": values, "labelOverlap": True, "format": ".3~g"}}  # fmt: skip
    y: Spec = {"type": "quantitative", "title": "global test avg, %",
               "scale": {"zero": False, "domain": list(heights), "nice": True}}  # fmt: skip
    lines = list(dict.fromkeys(point["line"] for point in data))
    colour: Spec = {"field": "line", "type": "nominal", "title": None, "sort": lines,
                    "legend": {"orient": "bottom", "columns": 1, "labelLimit": 480}}  # fmt: skip
    tips = tooltip(("row", ""), ("value", "g"), ("score", ".2f"), ("repeats", "d"))
    only = [{"filter": {"field": "setting", "equal": path}}]
    layers: list[Spec] = [
        {"transform": only, "mark": {"type": "rule", "opacity": 0.7, "strokeWidth": 2},
         "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"},
                      "color": colour}},
        {"transform": only, "mark": {"type": "line", "point": {"size": 50}},
         "encoding": {"x": x, "y": {**y, "field": "score"}, "color": colour, "tooltip": tips}},
    ]  # fmt: skip
    level = _level(results)
    if level is not None:
        layers.insert(0, {
            "data": {"values": [{}]},
            "mark": {"type": "rule", "strokeDash": [4, 4], "color": COLOURS[-1]},
            "encoding": {"y": {**y, "datum": level}},
        })  # fmt: skip
    return {"width": width, "height": height, "layer": layers}


def _scale(values: Sequence[float]) -> Spec:
    """By orders where values span some; a zero then lies one step of the smallest away."""
    positive = [value for value in values if value > 0]
    if values[0] < 0 or values[-1] < WIDE * min(positive):
        return {"zero": False}
    if values[0] > 0:
        return {"type": "log"}
    return {"type": "symlog", "constant": min(positive)}
