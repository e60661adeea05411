"""Scores over the rounds, row against row: on validation cases (Figure 3b), on test cases."""

from __future__ import annotations

from collections import Counter

from autofedavg.report.figures import vega
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.series import last_of, means, score_series
from autofedavg.report.figures.vega import Data, Spec
from autofedavg.report.repeats import Results, Row

MOST_CURVES = 10
LONG = 20  # rounds, from which on the first ones do not set the scale
ASIDE = 2  # times as far from the baseline as all others ever are
DASHED = "dashed: rows with fixed weights."


def validation_figure(results: Results) -> Figure | None:
    """The global model's validation score, row against row."""
    data = [item for row in results.rows for item in score_series(row, "validation")]
    if not data:
        return None
    drawn = means(data, "score")
    labels, left = best_rows(results, drawn)
    drawn, stride = vega.thinned(marked(results, drawn, labels))
    spec = {
        **vega.row_filter(labels),
        "data": {"values": drawn},
        "width": vega.WIDTH,
        "height": vega.HEIGHT + 40,
        "layer": _curves(drawn, labels, "score", "validation score, %", vega.FROM_LOWEST),
    }
    caption = (
        "Mean over sites of the global model's score on their validation cases, after each round; "
        f"{DASHED}{band(drawn)}{left}{vega.every(stride)}"
    )
    title, about = "Validation score over the rounds (Figure 3b)", _ends(drawn, "Validation")
    return Figure("validation", title, caption, data, spec, about=about)


def tested_figure(results: Results) -> Figure | None:
    """The global model's test score in runs that were tested as they went, and what is between."""
    data = [item for row in results.rows for item in tested_series(row)]
    if not data:
        return None
    name = _baseline(results)
    known = {_repeat(item): item["score"] for item in data if item["row"] == name}
    for item in data:
        if _repeat(item) in known:
            item["difference"] = item["score"] - known[_repeat(item)]
    scores = means(data, "score")
    labels, left = best_rows(results, scores)
    scores, stride = vega.thinned(marked(results, scores, labels))
    rounds = {item["t"] for item in scores}
    apart = means([item for item in data if "difference" in item], "difference")
    others = [label for label in labels if label != name]
    apart = [item for item in marked(results, apart, others) if item["t"] in rounds]
    far = _far(apart)
    apart = [item for item in apart if item["row"] not in far]
    panels = [panel(scores, labels, "score", "test score, %")]
    said = ""
    if apart:
        panels.append(panel(apart, labels, "difference", f"points above {name}"))
        said = f" Below: what is between a row and {name} in the repeats that both have."
    if far:
        said += f" Only above, being far off: {', '.join(far)}."
    if any(_beyond(part) for part in (scores, apart)):
        said += " Scales are those of later rounds; some of the first ones lie beyond."
    spec = {**vega.row_filter(labels), "data": {"values": [*scores, *apart]}, "vconcat": panels}
    caption = (
        "Mean over sites of the global model's score on their test cases, after each round that "
        f"was tested; nothing is chosen by it; {DASHED}{band(scores)}{said}{left}"
        f"{vega.every(stride)}"
    )
    title, about = "Test score over the rounds", _ends(scores, "Test")
    return Figure("tested", title, caption, data, spec, about=about)


def tested_series(row: Row) -> Data:
    """The test scores of a row that was tested more than once."""
    found = score_series(row, "test")
    return found if len({item["t"] for item in found}) > 1 else []


def _baseline(results: Results) -> str:
    return results.baseline_row.label if results.baseline_row else ""


def _repeat(item: dict[str, object]) -> tuple[object, ...]:
    return item["seed"], item["fold"], item["t"]


def marked(results: Results, drawn: Data, labels: list[str]) -> Data:
    """What is drawn of these rows, saying which have fixed weights."""
    fixed = [row.label for row in results.rows if not row.learns]
    return [{**item, "fixed": item["row"] in fixed} for item in drawn if item["row"] in labels]


def panel(drawn: Data, labels: list[str], value: str, title: str, x: Spec = vega.ROUND) -> Spec:
    """Curves of one of several values in the same data."""
    scale = vega.FROM_LOWEST
    if _beyond(drawn):
        in_sight = [*_late(drawn), *([0.0] if value == "difference" else [])]
        scale = {**scale, "domain": [min(in_sight), max(in_sight)], "nice": True}
    layers = _curves(drawn, labels, value, title, scale, x)
    if value == "difference":
        zero = vega.layer({"type": "rule", "opacity": 0.4}, y={"datum": 0})
        layers.insert(0, {"data": {"values": [{}]}, **zero})
    only = [{"filter": f"isValid(datum.{value})"}]
    return {"width": vega.WIDTH, "height": vega.HEIGHT - 60, "transform": only, "layer": layers}


def _far(apart: Data) -> list[str]:
    """The few rows that never come near the others later; with them in sight those are one line."""
    early = _early(apart)
    reach: dict[str, list[float]] = {}
    for item in apart:
        if item["t"] >= early:
            reach.setdefault(item["row"], []).extend((item["least"], item["greatest"]))
    nearest = {row: max(min(all_of), -max(all_of), 0.0) for row, all_of in reach.items()}
    furthest = {row: max(map(abs, all_of)) for row, all_of in reach.items()}
    rows = sorted(reach, key=lambda row: furthest[row])
    for n in range(len(rows) // 2 + 1, len(rows)):
        others, far = furthest[rows[n - 1]], rows[n:]
        if others > 0 and min(nearest[row] for row in far) > ASIDE * others:
            return [row for row in reach if row in far]
    return []


def _beyond(drawn: Data) -> bool:
    """Whether the first rounds of a long run go further than all that comes after."""
    if len({item["t"] for item in drawn}) < LONG:
        return False
    least, most = _late(drawn)
    low, high = min(x["least"] for x in drawn), max(x["greatest"] for x in drawn)
    return bool(low < least or high > most)


def _early(drawn: Data) -> int:
    """The rounds before this one are the first tenth."""
    return int(max((item["t"] for item in drawn), default=0)) // 10


def _late(drawn: Data) -> tuple[float, float]:
    """The least and the greatest after a tenth of the rounds, and where every row stands last."""
    early = _early(drawn)
    last = last_of(drawn)
    kept = [item for item in drawn if item["t"] >= early or item is last[item["row"]]]
    return min(item["least"] for item in kept), max(item["greatest"] for item in kept)


def _curves(
    drawn: Data, labels: list[str], value: str, title: str, scale: Spec, x: Spec = vega.ROUND
) -> list[Spec]:
    """A line per row, and the band of its repeats."""
    colour: Spec = {**vega.names("row", labels), "scale": {"domain": labels},
                    "legend": {"symbolOpacity": 1}}  # fmt: skip
    y = {"type": "quantitative", "title": title, "scale": scale}
    counts = Counter(item["row"] for item in drawn).values()
    few = min(counts, default=0) == 1 or max(counts, default=0) < 2 * LONG
    point = vega.dots(len(drawn), 18) if few else False
    across = [] if x is vega.ROUND else [(str(x["field"]), ",.1f")]
    line = vega.layer(
        {"type": "line", "strokeWidth": 2, "clip": True, "point": point},
        x=x,
        y={**y, "field": value},
        color=colour,
        strokeDash={"condition": {"test": "datum.fixed", "value": [5, 3]}, "value": [1, 0]},
        tooltip=vega.tooltip(("row", ""), ("t", "d"), *across, (value, ".2f")),
    )
    if not _several(drawn):
        return [line]
    area, ends = {"type": "area", "opacity": 0.15, "clip": True}, {"field": "greatest"}
    return [vega.layer(area, x=x, color=colour, y2=ends, y={**y, "field": "least"}), line]


def _several(drawn: Data) -> bool:
    return any(item["repeats"] > 1 for item in drawn)


def band(drawn: Data) -> str:
    """What a caption says of the band of the repeats, where there is one."""
    return " The band spans the repeats." if _several(drawn) else ""


def best_rows(results: Results, drawn: Data) -> tuple[list[str], str]:
    """The rows that curves can be told apart of: the baseline and those that end highest."""
    last = last_of(drawn)
    labels = [label for label in results.labels if label in last]
    if len(labels) <= MOST_CURVES:
        return labels, ""
    first = _baseline(results)
    kept = sorted(labels, key=lambda label: (label != first, -last[label]["score"]))[:MOST_CURVES]
    which = f"The {MOST_CURVES} rows of {len(labels)} that end highest"
    if first in labels:
        which = f"{first} and the {MOST_CURVES - 1} rows of {len(labels)} that end highest"
    return [label for label in labels if label in kept], f" {which}; the CSV file has all."


def _ends(drawn: Data, which: str) -> str:
    """The last values in words."""
    said = ", ".join(f"{row} {item['score']:.1f}" for row, item in last_of(drawn).items())
    return f"{which} score after the last common round: {said}."
