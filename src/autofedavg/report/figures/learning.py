"""The loss that the aggregation weights are learned by, in the first and last steps of calls."""

from __future__ import annotations

from autofedavg.report.figures.curves import ROUND
from autofedavg.report.figures.figure import (
    MOST_MARKS,
    Data,
    Figure,
    Spec,
    dots,
    panels,
    row_filter,
    thinned,
    tooltip,
)
from autofedavg.report.figures.series import means
from autofedavg.report.learning import calls_of
from autofedavg.report.read import Results

FIRST, LAST = "first steps", "last steps"


def learning_figure(results: Results) -> Figure | None:
    """A panel per row: the loss in the first and in the last steps of every call."""
    data: Data = [
        {"row": row.label, "seed": call.seed, "fold": call.fold, "t": call.t, "steps": name,
         "loss": loss}
        for row in results.rows
        for call in calls_of(row)
        for name, loss in ((FIRST, call.first), (LAST, call.last))
    ]  # fmt: skip
    kept, left = panels(list(dict.fromkeys(item["row"] for item in data)))
    drawn = means([item for item in data if item["row"] in kept], "loss", "steps")
    if not drawn:
        return None
    # Rows may learn in different rounds: each keeps some of its own.
    few = MOST_MARKS // len(kept)
    thin = [thinned([item for item in drawn if item["row"] == row], few) for row in kept]
    drawn, stride = [item for part, _ in thin for item in part], max(n for _, n in thin)
    y: Spec = {"field": "loss", "type": "quantitative", "title": "loss", "scale": {"zero": False}}
    colour: Spec = {"field": "steps", "type": "nominal", "title": None, "sort": [FIRST, LAST]}
    tips = tooltip(("row", ""), ("steps", ""), ("t", "d"), ("loss", ".4f"))
    spec: Spec = {
        **row_filter(kept),
        "data": {"values": drawn},
        "columns": 2,
        "facet": {"field": "row", "type": "nominal", "title": None, "sort": kept},
        "spec": {
            "width": 250,
            "height": 150,
            "mark": {"type": "line", "point": dots(len(drawn), 18), "strokeWidth": 2},
            "encoding": {"x": ROUND, "y": y, "color": colour, "tooltip": tips},
        },
    }
    repeats = max(item["repeats"] for item in drawn)
    mean = " Means over repeats." if repeats > 1 else ""
    caption = (
        "Mean over sites of the loss on the batches that the weights are learned on, in the first "
        "and in the last quarter of every call's steps: what a call gains is between the lines."
        f" With several steps a message, a message counts as one.{mean}{left}{_calls(stride)}"
    )
    title = "Loss that the weights are learned by, at both ends of a call"
    return Figure("learning", title, caption, data, spec, about=_about(drawn))


def _calls(stride: int) -> str:
    """What the caption says of calls that are not drawn."""
    return "" if stride == 1 else " Not all calls of all rows are drawn; the CSV file has all."


def _about(drawn: Data) -> str:
    """The last calls in words."""
    last: dict[str, dict[str, float]] = {}
    for item in sorted(drawn, key=lambda item: item["t"]):
        last.setdefault(item["row"], {})[item["steps"]] = item["loss"]
    said = "; ".join(
        f"{row}: {losses[FIRST]:.4f}, then {losses[LAST]:.4f}" for row, losses in last.items()
    )
    return f"Loss in the first and last steps of the last call: {said}."
