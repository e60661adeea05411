"""The calls of LearnAggWeight over the rounds, marked by whether they paid."""

from __future__ import annotations

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.vega import Data
from autofedavg.report.paying import judged_calls
from autofedavg.report.repeats import Results

WIDE, TALL = 250, 150
PAID, LOST, BACK = "paid", "did not pay", "did not pay: to sizes"


def paying_figure(results: Results) -> Figure | None:
    """What every call gained, with its noise; a mark's colour and shape say whether it paid."""
    data: Data = [
        {"row": row.label, "seed": call.seed, "fold": call.fold, "t": call.t, "gain": call.gain,
         "low": call.gain - 2 * call.error, "high": call.gain + 2 * call.error,
         "call": PAID if call.paid else BACK if call.to_sizes else LOST}
        for row in results.rows
        for call in judged_calls(row)
    ]  # fmt: skip
    if not data:
        return None
    kept, left = vega.panels(list(dict.fromkeys(item["row"] for item in data)))
    drawn, stride = vega.thinned([item for item in data if item["row"] in kept])
    kinds = [kind for kind in (PAID, LOST, BACK) if any(item["call"] == kind for item in data)]
    colour = vega.names("call", kinds)
    tips = vega.tooltip(("row", ""), ("call", ""), ("t", "d"), ("gain", ".4f"), ("seed", "d"))
    noise = {**vega.number("low", "loss lowered by"), "scale": vega.FROM_LOWEST}
    panel = {
        "width": WIDE,
        "height": TALL,
        "layer": [
            vega.layer(
                {"type": "rule", "opacity": 0.6},
                x=vega.ROUND,
                y=noise,
                y2={"field": "high"},
                color=colour,
            ),
            vega.layer(
                {"type": "point", "filled": True, "size": 45},
                x=vega.ROUND,
                y={**noise, "field": "gain"},
                color=colour,
                shape=colour,
                tooltip=tips,
            ),
        ],
    }
    caption = (
        "Calls of LearnAggWeight where t0 = auto, a mark for every repeat: how much the learned "
        "weights lower the sites' mean loss, with two standard errors to each side, on batches "
        "that no step was taken on. A call pays if the line lies above zero."
        f"{left}{vega.every(stride)}"
    )
    title = "Which calls of LearnAggWeight paid"
    about = "; ".join(
        f"{row}: {sum(i['row'] == row and i['call'] == PAID for i in data)} of "
        f"{sum(i['row'] == row for i in data)} calls paid"
        for row in kept
    )
    spec = vega.per_row(kept, drawn, panel)
    return Figure("paying", title, caption, data, spec, about=f"{about}.")
