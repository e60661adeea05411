"""An inspection as one self-contained HTML page: no scripts, nothing from the network."""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from autofedavg.tasks.imaging.panels import COLOURS, colours_of, picture, png, traced, view
from autofedavg.tasks.imaging.preparation import Classes, load
from autofedavg.tasks.inspection import text as words
from autofedavg.tasks.inspection.comparison import CaseLine, Histogram

if TYPE_CHECKING:
    from autofedavg.tasks.inspection.look import Inspection

WIDTH, LEFT, ROW, AXIS = 640, 130, 46, 26  # of a chart
PLOT = WIDTH - LEFT - 40
FULL = 1.5  # shift at which a cell's colour is fullest
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Example(NamedTuple):
    """A picture of one case."""

    line: CaseLine
    why: str  # the property that the case is an example of
    slice: int | None  # the number of the slice, from 1; None for flat images
    slices: int  # their number
    size: tuple[int, int]
    png: bytes  # the picture


def choose(lines: Sequence[CaseLine]) -> list[tuple[CaseLine, str]]:
    """The cases to show: the median, the smallest and the largest label that is not empty."""
    labelled = [line for line in lines if line.label_voxels] or list(lines)
    order = sorted(labelled, key=lambda line: (line.label_ml or line.label_voxels, line.case))
    if len(order) == 1:
        return [(order[0], "only label")]
    chosen = [(order[0], "smallest label"), (order[-1], "largest label")]
    if len(order) > 2:
        chosen.insert(0, (order[(len(order) - 1) // 2], "median label"))
    return chosen


def example(line: CaseLine, why: str, classes: Classes) -> Example:
    """Draws one case; raises DataError if its files cannot be read."""
    seen = view(*load(line.entry.as_case(), classes))
    window = line.intensities(0)
    plain = picture(seen, window.low, window.high)
    made = traced(plain, seen.label, colours_of(int(seen.label.max()))[0])
    return Example(line, why, seen.slice, seen.slices, made.size, png(made))


def page(found: Inspection, examples: Sequence[Example]) -> str:
    """The whole page."""
    title = escape(f"Inspection of {found.name}")
    style = (files("autofedavg.tasks.inspection") / "inspection.css").read_text(encoding="utf-8")
    parts = [
        _section("What sets sites apart", "", _list(found.differences)),
        _section("Worth a look", "", _list(found.oddities or ["nothing odd was found"])),
        _section("Sites", words.SITES_MEAN, _table(("", *found.sites), words.site_rows(found))),
        _section("Examples", _examples_mean(found), _examples(examples)),
        *(_intensities(found, channel) for channel in range(len(found.shifts))),
        _label_sizes(found),
        _section("Settings worked out from the data", words.SETTINGS_MEAN, _settings(found)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head>\n<body><h1>{title}</h1>"
        f"<p>{escape(words.headline(found))}</p>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _section(title: str, means: str, content: str) -> str:
    said = f'<p class="means">{escape(means)}</p>' if means else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(said)}</li>' for said in sentences)}</ul>"


def _table(head: Iterable[str], rows: Iterable[words.Row], kind: str = "") -> str:
    """A table of text; `kind` is an attribute of its cells."""
    cells = ((what, [f"<td{kind}>{escape(cell)}</td>" for cell in row]) for what, row in rows)
    return _cells(head, cells)


def _cells(head: Iterable[str], rows: Iterable[words.Row]) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(what)}</th>{"".join(row)}</tr>' for what, row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def _examples_mean(found: Inspection) -> str:
    where = "" if found.flat else ", in the slice where the label is largest"
    turned = any(site.spacing for site in found.sites.values())
    side = " The patient's right is on the left." if turned else ""
    return (
        f"Cases with a median, a small and a large label{where}; lines are borders of labels.{side}"
    )


def _examples(examples: Sequence[Example]) -> str:
    parts = [_key([*examples[0].line.voxels])]
    for site, group in groupby(examples, key=lambda shown: shown.line.entry.site):
        figures = "".join(_figure(shown) for shown in group)
        parts.append(f'<h3>{escape(site)}</h3><div class="strip">{figures}</div>')
    return "".join(parts)


def _key(classes: Sequence[str]) -> str:
    keys = "".join(
        f'<span class="key" style="color:rgb{COLOURS[k % len(COLOURS)]}"></span>{escape(name)}'
        for k, name in enumerate(classes)
    )
    return f"<p>Classes:{keys}</p>"


def _figure(shown: Example) -> str:
    line = shown.line
    place = "" if shown.slice is None else f", slice {shown.slice} of {shown.slices}"
    size = f"{line.label_voxels:,} {'pixels' if shown.slice is None else 'voxels'}"
    if line.label_ml is not None:
        size += f", {words.number(line.label_ml)} ml"
    said = f"{line.case}: {shown.why} ({size}){place}"
    full = escape(f"{line.entry.site}, {said}")
    width, height = shown.size
    source = base64.b64encode(shown.png).decode()
    return (
        f'<figure><img width="{width}" height="{height}" alt="{full}" '
        f'src="data:image/png;base64,{source}"><figcaption>{escape(said)}</figcaption></figure>'
    )


def _intensities(found: Inspection, channel: int) -> str:
    named = words.channel_name(found, channel)
    titles = (f"as stored{named}", f"after {found.normalise}{named}")
    charts = "".join(
        f"<div><h3>{escape(title)}</h3>{ridges(known, f'Histogram of intensities, {title}')}</div>"
        for title, known in zip(titles, found.histograms[channel], strict=True)
    )
    tables = "".join(
        f"<div><h3>{escape(title)}</h3>{_matrix(found, numbers)}</div>"
        for title, numbers in words.matrices(found, channel)
    )
    return _section(
        f"Intensities{named}",
        words.SPARKS_MEAN,
        f'<div class="pair">{charts}</div><p class="means">{escape(words.SHIFT_MEANS)}</p>'
        f'<div class="pair">{tables}</div>',
    )


def _matrix(found: Inspection, numbers: Sequence[Sequence[float]]) -> str:
    rows = []
    for site, shown, values in zip(found.sites, words.cells(numbers), numbers, strict=True):
        depths = [0.6 * min(1.0, value / FULL) for value in values]
        rows.append((site, [
            f'<td style="background:rgb(230 120 20 / {depth:.2f})">{cell}</td>'
            for cell, depth in zip(shown, depths, strict=True)
        ]))  # fmt: skip
    return _cells(("", *found.sites), rows)


def _label_sizes(found: Inspection) -> str:
    known = all(site.label_ml is not None for site in found.sites.values())
    unit = "ml" if known else "pixels" if found.flat else "voxels"
    sizes = {
        site: [(line.label_ml or 0.0) if known else float(line.label_voxels) for line in lines]
        for site, lines in found.cases.items()
    }
    means = f"One dot per case, in {unit}, all classes together; the bar is the median."
    return _section("Label sizes", means, dots(sizes, f"Label sizes in {unit} by site"))


def _settings(found: Inspection) -> str:
    rows = [(path, [value, origin]) for path, value, origin in words.setting_rows(found)]
    return _table(("setting", "value", "why"), rows, ' class="words"')


def ridges(seen: Histogram, what: str) -> str:
    """The histograms of all sites as SVG, one above the other on one axis."""

    def draw(shares: Sequence[float], floor: int) -> str:
        step = PLOT / len(shares)
        points = [f"M{LEFT},{floor}"]
        for place, share in enumerate(shares):
            height = floor - min(1.0, share / seen.top) * (ROW - 8)
            points.append(f"L{LEFT + place * step:.1f},{height:.1f}")
            points.append(f"L{LEFT + (place + 1) * step:.1f},{height:.1f}")
        return f'<path class="fill" d="{"".join(points)}L{LEFT + PLOT},{floor}Z"/>'

    ticks = [seen.low + share * (seen.high - seen.low) for share in (0, 0.25, 0.5, 0.75, 1)]
    marks = [(LEFT + k * PLOT / 4, words.number(tick)) for k, tick in enumerate(ticks)]
    return _chart(seen.shares, draw, marks, what)


def dots(values: Mapping[str, Sequence[float]], what: str) -> str:
    """One dot per value, one row per site, on a logarithmic axis, as SVG; a bar is the median."""
    known = [value for seen in values.values() for value in seen if value > 0]
    low = math.floor(math.log10(min(known, default=1.0)))
    high = max(low + 1, math.ceil(math.log10(max(known, default=10.0))))

    def place(value: float) -> float:
        return LEFT + (math.log10(value) - low) / (high - low) * PLOT

    def draw(seen: Sequence[float], floor: int) -> str:
        shown = sorted(value for value in seen if value > 0)
        parts = [  # jittered, so that few dots overlap
            f'<circle class="dot" cx="{place(value):.1f}" cy="{floor - 10 - (k * 7) % 26}" r="3"/>'
            for k, value in enumerate(shown)
        ]
        if shown:
            middle = f"{place(statistics.median(shown)):.1f}"
            line = f"M{middle},{floor - ROW + 6}L{middle},{floor}"
            parts.append(f'<path class="median" d="{line}"/>')
        return "".join(parts)

    every = max(1, (high - low) // 5)
    marks = [(place(10.0**power), f"{10.0**power:,g}") for power in range(low, high + 1, every)]
    return _chart(values, draw, marks, what)


def _chart(
    values: Mapping[str, Sequence[float]],
    draw: Callable[[Sequence[float], int], str],
    marks: Sequence[tuple[float, str]],
    what: str,
) -> str:
    """A row per site, drawn above its floor, and an axis with (place, tick) marks below."""
    parts = []
    for row, (site, seen) in enumerate(values.items(), 1):
        floor, short = row * ROW, site if len(site) <= 16 else site[:15] + "…"
        parts += [
            f'<text x="{LEFT - 8}" y="{floor - 8}" text-anchor="end">{escape(short)}</text>',
            draw(seen, floor),
            f'<path class="axis" d="M{LEFT},{floor}H{LEFT + PLOT}"/>',
        ]
    bottom = len(values) * ROW
    parts += [
        f'<text x="{place:.1f}" y="{bottom + 18}" text-anchor="middle">{tick}</text>'
        for place, tick in marks
    ]
    said = escape(what)
    return (
        f'<svg viewBox="0 0 {WIDTH} {bottom + AXIS}" role="img" aria-label="{said}">'
        f"<title>{said}</title>{''.join(parts)}</svg>"
    )
