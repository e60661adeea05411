"""Scores against the bytes that were sent for them: rounds of rows do not cost the same."""

from __future__ import annotations

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.rows import DASHED, band, best_rows, marked, panel, tested_series
from autofedavg.report.figures.series import last_of, means, score_series
from autofedavg.report.figures.vega import Data
from autofedavg.report.repeats import Results, Row
from autofedavg.report.spent import spent_by

MB = "MB sent, all sites, both ways"
APART = 3  # times the bytes of the row that sends least; from there on a scale of ratios


def bytes_figure(results: Results) -> Figure | None:
    """Validation score, and test score where it was recorded, against bytes without evaluating."""
    data: Data = []
    panels, scores = [], []
    for split in ("validation", "test"):
        series = tested_series if split == "test" else _validated
        found = [item for row in results.rows for item in _with_bytes(row, series(row))]
        if found:
            data += [{"split": split, **item} for item in found]
            panels.append(split)
            scores.append(_means(found))
    if not data:
        return None
    labels, left = best_rows(results, scores[-1])
    drawn, stride, x = [], 1, vega.number("MB", MB)
    for split, items in zip(panels, scores, strict=True):
        kept, each = vega.thinned(marked(results, items, labels), vega.MOST_MARKS // len(panels))
        stride = max(stride, each)
        drawn.append([{split: item["score"], **item} for item in kept])
    logarithmic = _far_apart([item for part in drawn for item in part])
    if logarithmic:
        x["scale"] = {"type": "log", "nice": False}
    spec = {
        **vega.row_filter(labels),
        "data": {"values": [item for part in drawn for item in part]},
        "vconcat": [
            panel(part, labels, split, f"{split} score, %", x)
            for split, part in zip(panels, drawn, strict=True)
        ],
    }
    caption = (
        "Mean over sites of the global model's score, against the bytes of training and of "
        "learning the weights up to that round; evaluating is not counted; "
        f"{DASHED}{band(drawn[-1])}{' Bytes on a logarithmic scale.' * logarithmic}{left}"
        f"{vega.every(stride)}"
    )
    ends = ", ".join(
        f"{row} {item['score']:.1f} for {item['MB']:,.0f} MB"
        for row, item in last_of(drawn[-1]).items()
    )
    about = f"{panels[-1].capitalize()} score after the last common round: {ends}."
    return Figure("bytes", "Score against bytes sent", caption, data, spec, about=about)


def _validated(row: Row) -> Data:
    return score_series(row, "validation")


def _with_bytes(row: Row, series: Data) -> Data:
    """The items of rounds whose bytes are known, with these."""
    spent = {(repeat.seed, repeat.fold): spent_by(repeat) for repeat in row.repeats}
    return [
        {**item, "MB": known[item["t"]].megabytes}
        for item in series
        if item["t"] in (known := spent[item["seed"], item["fold"]])
    ]


def _means(data: Data) -> Data:
    """Mean score and mean bytes over repeats, round by round."""
    sent = {(item["row"], item["t"]): item["MB"] for item in means(data, "MB")}
    return [{**item, "MB": sent[item["row"], item["t"]]} for item in means(data, "score")]


def _far_apart(drawn: Data) -> bool:
    """Whether rows end so far apart that a linear scale would press some into a corner."""
    ends = [item["MB"] for item in last_of(drawn).values()]
    least = min(item["MB"] for item in drawn)
    return bool(least > 0 and max(ends) > APART * min(ends))
