"""Small charts as SVG text: histograms one above the other, and dots on a common axis."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Mapping, Sequence

from autofedavg.tasks.inspection.comparison import Histogram
from autofedavg.tasks.inspection.text import number

WIDTH, LEFT, ROW, AXIS = 640, 130, 46, 26
PLOT = WIDTH - LEFT - 40


def ridges(seen: Histogram, what: str) -> str:
    """Histograms of sites, one above the other on one axis."""
    parts = []
    for row, (site, shares) in enumerate(seen.shares.items()):
        floor = (row + 1) * ROW
        step = PLOT / len(shares)
        points = [f"M{LEFT},{floor}"]
        for place, share in enumerate(shares):
            height = floor - min(1.0, share / seen.top) * (ROW - 8)
            points.append(f"L{LEFT + place * step:.1f},{height:.1f}")
            points.append(f"L{LEFT + (place + 1) * step:.1f},{height:.1f}")
        points.append(f"L{LEFT + PLOT},{floor}Z")
        parts += [_name(site, floor), f'<path class="fill" d="{"".join(points)}"/>']
        parts.append(_line(floor))
    ticks = [seen.low + share * (seen.high - seen.low) for share in (0, 0.25, 0.5, 0.75, 1)]
    marks = [(LEFT + k * PLOT / 4, number(tick)) for k, tick in enumerate(ticks)]
    return _svg(parts, len(seen.shares), marks, what)


def dots(values: Mapping[str, Sequence[float]], what: str) -> str:
    """One dot per value, one row per site, on a logarithmic axis; a bar marks the median."""
    known = [value for seen in values.values() for value in seen if value > 0]
    low = math.floor(math.log10(min(known, default=1.0)))
    high = max(low + 1, math.ceil(math.log10(max(known, default=10.0))))

    def place(value: float) -> float:
        return LEFT + (math.log10(value) - low) / (high - low) * PLOT

    parts = []
    for row, (site, seen) in enumerate(values.items()):
        floor = (row + 1) * ROW
        parts += [_name(site, floor), _line(floor)]
        shown = sorted(value for value in seen if value > 0)
        for order, value in enumerate(shown):  # a little up and down, so that few dots overlap
            height = floor - 10 - (order * 7) % 26
            parts.append(f'<circle class="dot" cx="{place(value):.1f}" cy="{height}" r="3"/>')
        if shown:
            middle = place(statistics.median(shown))
            parts.append(
                f'<path class="median" d="M{middle:.1f},{floor - ROW + 6}L{middle:.1f},{floor}"/>'
            )
    every = max(1, (high - low) // 5)
    marks = [(place(10.0**power), f"{10.0**power:,g}") for power in range(low, high + 1, every)]
    return _svg(parts, len(values), marks, what)


def _name(site: str, floor: float) -> str:
    short = site if len(site) <= 16 else site[:15] + "…"
    return f'<text x="{LEFT - 8}" y="{floor - 8}" text-anchor="end">{html.escape(short)}</text>'


def _line(floor: float) -> str:
    return f'<path class="axis" d="M{LEFT},{floor}H{LEFT + PLOT}"/>'


def _svg(parts: Sequence[str], rows: int, marks: Sequence[tuple[float, str]], what: str) -> str:
    said = html.escape(what)
    axis = "".join(
        f'<text x="{place:.1f}" y="{rows * ROW + 18}" text-anchor="middle">{tick}</text>'
        for place, tick in marks
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {rows * ROW + AXIS}" role="img" aria-label="{said}">'
        f"<title>{said}</title>{''.join(parts)}{axis}</svg>"
    )
