"""The critical-difference diagram: mean ranks on a line, joined where a test sees no difference."""

from __future__ import annotations

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.overview import Overview

STEP = 22  # pixels between two names
JOINT = 9  # pixels between two joints
ABOVE = 42  # pixels above the line of ranks, for the critical difference


def critical_difference_figure(overview: Overview) -> Figure | None:
    """Mean ranks with Nemenyi's critical difference; None where there is no test."""
    if overview.test is None:
        return None
    labels, groups, k = list(overview.ranking), overview.groups, len(overview.rows)
    half = (k + 1) // 2
    joints = JOINT * (len(groups) + 1)
    rows: Data = []
    for place, (label, rank) in enumerate(overview.ranking.items()):
        best = place < half  # the better half is named on the left, from the top down
        level = place if best else k - 1 - place
        side = 1.0 if best else float(k)
        rows.append({"row": label, "rank": rank, "y": joints + STEP * (level + 0.5), "side": side,
                     "name": f"{label}  {rank:.2f}", "best": best, "line": 0})  # fmt: skip
    joined: Data = [
        {"from": overview.ranking[group[0]], "to": overview.ranking[group[-1]],
         "y": JOINT * (number + 1.0)}
        for number, group in enumerate(groups)
    ]  # fmt: skip
    height = joints + STEP * half + ABOVE
    spec: Spec = {
        "params": vega.row_filter(labels)["params"],
        "width": vega.WIDTH - 160,
        "height": height,
        "layer": _layers(labels, rows, joined, overview.critical, k, float(height - ABOVE)),
    }
    caption = (
        "Mean ranks over the studies; 1, at the left, is best. A thick line joins rows that lie "
        f"less than the critical difference, {overview.critical:.2f} ranks, apart (Nemenyi's test "
        "at the 5 % level)."
    )
    about = "Mean ranks: " + ", ".join(f"{row} {r:.2f}" for row, r in overview.ranking.items())
    data: Data = [{"row": row, "mean rank": rank} for row, rank in overview.ranking.items()]
    title = "Critical-difference diagram"
    return Figure("critical-difference", title, caption, data, spec, about=f"{about}.")


def _layers(
    labels: list[str], rows: Data, joined: Data, critical: float, k: int, bottom: float
) -> list[Spec]:
    """The line of ranks, a lead from every rank to its name, the joints and the difference."""
    scale = {"domain": [1, max(k, 1 + critical)], "nice": False, "zero": False}
    ticks = {"orient": "top", "values": list(range(1, k + 1)), "format": "d", "grid": False,
             "offset": -ABOVE}  # fmt: skip
    x = vega.number("rank", "", scale=scale, axis=ticks)
    y = vega.number("y", "", axis=None, scale={"domain": [bottom, -ABOVE], "nice": False})
    line = {**y, "field": "line"}
    shown = vega.row_filter(labels)["transform"]

    def of(values: Data, mark: Spec, **encoding: Spec | list[Spec]) -> Spec:
        return {"data": {"values": values}, **vega.layer(mark, **encoding)}

    tips = vega.tooltip(("row", ""), ("rank", ".3f"))
    layers = [
        of(rows, {"type": "rule"}, x=x, y=line, y2={"field": "y"}),
        of(rows, {"type": "rule"}, x=x, x2={"field": "side"}, y=y),
        of(rows, {"type": "point", "filled": True, "size": 40, "color": vega.COLOURS[0]},
           x=x, y=line, tooltip=tips),
    ]  # fmt: skip
    for best, align, dx in ((True, "right", -6), (False, "left", 6)):
        text = {"type": "text", "align": align, "dx": dx, "baseline": "middle"}
        half = [row for row in rows if row["best"] is best]
        names = {"field": "name", "type": "nominal"}
        layers.append(of(half, text, x={**x, "field": "side"}, y=y, text=names))
    for layer in layers:
        layer["transform"] = shown
    thick = {"type": "rule", "strokeWidth": 5, "strokeCap": "round", "color": vega.COLOURS[5]}
    if joined:
        layers.append(of(joined, thick, x={**x, "field": "from"}, x2={"field": "to"}, y=y))
    width = [{"rank": 1, "to": 1 + critical, "y": 4.0 - ABOVE, "name": f"CD {critical:.2f}"}]
    beside = {"type": "text", "align": "left", "dx": 6, "baseline": "middle"}
    layers += [
        of(width, {"type": "rule", "strokeWidth": 2}, x=x, x2={"field": "to"}, y=y),
        of(width, beside, x={**x, "field": "to"}, y=y, text={"field": "name", "type": "nominal"}),
    ]
    return layers
