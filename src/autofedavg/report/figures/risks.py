"""How far every row is behind the best one, study by study."""

from __future__ import annotations

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.overview import Overview


def risks_figure(overview: Overview) -> Figure | None:
    """A line for every row, with a dot for every study; None where no rows are shared."""
    if len(overview.rows) < 2:
        return None
    labels, studies = list(overview.behind), list(overview.compared)
    data: Data = [
        {"row": label, "study": study, "points": points, "furthest": max(behind)}
        for label, behind in overview.behind.items()
        for study, points in zip(studies, behind, strict=True)
    ]
    furthest = [{"row": label, "points": max(behind)} for label, behind in overview.behind.items()]
    title = "points behind the best row"
    # A root's scale: rows that are far behind do not squeeze those that are near.
    x = vega.number("points", title, scale={"type": "sqrt"})
    y = vega.names("row", labels)
    rows = vega.row_filter(labels)
    line = vega.layer({"type": "rule", "opacity": 0.4}, x=x, x2={"datum": 0}, y=y)
    colour: Spec = {**vega.names("study", studies), "legend": {"orient": "bottom", "columns": 2}}
    dots = vega.layer(
        {"type": "circle", "size": 70, "opacity": 0.9},
        x=x, y=y, color=colour, tooltip=vega.tooltip(("row", ""), ("study", ""), ("points", ".2f")),
    )  # fmt: skip
    spec: Spec = {
        "params": rows["params"],
        "width": 465,
        "height": {"step": 18},
        "data": {"values": data},
        "layer": [
            {"data": {"values": furthest}, "transform": rows["transform"], **line},
            {"transform": rows["transform"], **dots},
        ],
    }
    caption = (
        "A dot for each study: points of global test avg behind the best of these rows there, mean "
        "over seeds. The row whose furthest dot is nearest stands first. The scale is that of a "
        "square root."
    )
    about = "Furthest behind: " + ", ".join(f"{f['row']} {f['points']:.2f}" for f in furthest)
    return Figure("risks", "What a row may cost", caption, data, spec, about=f"{about}.")
