"""Example cases as the page shows them, and as one SVG per site."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from autofedavg.core.errors import printable
from autofedavg.report.examples import ExampleCase, Examples, Key, Panel
from autofedavg.report.repeats import stem

CELL, GAP, LINE = 220, 10, 20


@dataclass(frozen=True)
class Group:
    """One site's cases."""

    site: str
    name: str
    cases: tuple[ExampleCase, ...]


def groups(examples: Examples) -> list[Group]:
    """The cases by site."""
    return [
        Group(site, f"examples-{number}-{stem(site)}", tuple(cases))
        for number, (site, cases) in enumerate(groupby(examples.cases, lambda c: c.site), 1)
    ]


def source(panel: Panel) -> str:
    """A picture as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(panel.png).decode()}"


def sheet(group: Group, key: Sequence[Key]) -> str:
    """A site's cases as one SVG: a line of pictures each, with words."""
    columns = max(len(case.panels) for case in group.cases)
    width = columns * (CELL + GAP) + GAP
    parts = [_text(GAP, LINE, group.site, bold=True), *_keys(key)]
    y = float(LINE + 2 * GAP)
    for case in group.cases:
        parts.append(_text(GAP, y + LINE - 6, case.caption))
        y += LINE
        tallest = 0.0
        for column, panel in enumerate(case.panels):
            wide, tall = panel.size
            height = CELL * tall / wide
            tallest = max(tallest, height)
            x = GAP + column * (CELL + GAP)
            parts.append(
                f'<image x="{x}" y="{y}" width="{CELL}" height="{height:.1f}" '
                f'xlink:href="{source(panel)}"><title>{escape(printable(case.alt(panel)))}</title></image>'
            )
            parts.append(_text(x, y + height + 15, panel.what))
        y += tallest + LINE + 2 * GAP
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width}" height="{y:.0f}" viewBox="0 0 {width} {y:.0f}" fill="currentColor" '
        'font-family="Arial, Helvetica, Liberation Sans, sans-serif" font-size="12">'
        + "".join(parts)
        + "</svg>"
    )


def _keys(key: Sequence[Key]) -> list[str]:
    parts = []
    for number, (what, colour) in enumerate(key):
        x = 200 + 140 * number
        parts.append(f'<rect x="{x}" y="{LINE - 6}" width="18" height="3" fill="{colour}"/>')
        parts.append(_text(x + 24, LINE, what))
    return parts


def _text(x: float, y: float, words: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{weight}>{escape(printable(words))}</text>'
