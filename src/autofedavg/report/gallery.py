"""Example cases (the paper's Figure 2) as data, as the page shows them, and as one SVG per site."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import NamedTuple

from autofedavg.core.errors import printable
from autofedavg.report.repeats import stem

CELL, GAP, LINE = 220, 10, 20
IMAGE, LABEL = "image", "label"


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        what: "image", "label", or the label of the row whose segmentation it shows.
        png: the file.
        size: width and height in pixels.
        score: of a segmentation: that of the whole case, from scores.csv.
    """

    what: str
    png: bytes
    size: tuple[int, int]
    score: float | None = None

    @property
    def source(self) -> str:
        """The picture as an address that holds it."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


@dataclass(frozen=True)
class ExampleCase:
    """One case in four pictures.

    Attributes:
        why: what it is an example of.
        difference: the method's score minus the baseline's.
        slice: which slice is shown, from 1; None for flat images.
        slices: how many there are.
        upright: whether it is known that the patient's right is on the left.
    """

    site: str
    case: str
    why: str
    difference: float
    slice: int | None
    slices: int
    panels: tuple[Panel, ...]
    upright: bool = False

    @property
    def _place(self) -> str:
        return "" if self.slice is None else f", slice {self.slice} of {self.slices}"

    @property
    def caption(self) -> str:
        """One line for below the pictures."""
        known = [panel for panel in self.panels if panel.score is not None]
        scores = ", ".join(f"{panel.what} {100 * (panel.score or 0.0):.1f}" for panel in known)
        points = f"{100 * self.difference:+.1f} points"
        return f"{self.case}: {self.why}, {points} ({scores}){self._place}"

    def alt(self, panel: Panel) -> str:
        """What a picture shows, for those who cannot see it."""
        case = f"{self.site}, case {self.case}{self._place}"
        if panel.score is None:
            return f"{case}: {'border of the label' if panel.what == LABEL else panel.what}"
        return f"{case}: segmentation by {panel.what}, score {100 * panel.score:.1f}, and the label"


class Key(NamedTuple):
    """What a line's colour means; colours as CSS writes them."""

    what: str
    colour: str


class Group(NamedTuple):
    """One site's cases."""

    site: str
    name: str
    cases: tuple[ExampleCase, ...]


@dataclass(frozen=True)
class Examples:
    """The example cases of a report.

    Attributes:
        baseline: the label of the row that the method is compared with.
        method: the label of the method's row.
        cases: site by site.
        notes: by which rules they were chosen, what they show, and what is missing and why.
        key: what the lines' colours mean.
    """

    baseline: str
    method: str
    cases: tuple[ExampleCase, ...] = ()
    notes: tuple[str, ...] = ()
    key: tuple[Key, ...] = ()

    @property
    def groups(self) -> list[Group]:
        """The cases by site."""
        return [
            Group(site, f"examples-{number}-{stem(site)}", tuple(cases))
            for number, (site, cases) in enumerate(groupby(self.cases, lambda c: c.site), 1)
        ]


def sheet(group: Group, key: Sequence[Key]) -> str:
    """A site's cases as one SVG: a line of pictures each, with words."""
    width = max(len(case.panels) for case in group.cases) * (CELL + GAP) + GAP
    parts = [_text(GAP, LINE, group.site, bold=True)]
    for number, (what, colour) in enumerate(key):
        x = 200 + 140 * number
        parts.append(f'<rect x="{x}" y="{LINE - 6}" width="18" height="3" fill="{colour}"/>')
        parts.append(_text(x + 24, LINE, what))
    y = float(LINE + 2 * GAP)
    for case in group.cases:
        parts.append(_text(GAP, y + LINE - 6, case.caption))
        y += LINE
        heights = [CELL * panel.size[1] / panel.size[0] for panel in case.panels]
        for column, (panel, height) in enumerate(zip(case.panels, heights, strict=True)):
            x = GAP + column * (CELL + GAP)
            parts.append(
                f'<image x="{x}" y="{y}" width="{CELL}" height="{height:.1f}" xlink:href='
                f'"{panel.source}"><title>{escape(printable(case.alt(panel)))}</title></image>'
            )
            parts.append(_text(x, y + height + 15, panel.what))
        y += max(heights) + LINE + 2 * GAP
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width}" height="{y:.0f}" viewBox="0 0 {width} {y:.0f}" fill="currentColor" '
        'font-family="Arial, Helvetica, Liberation Sans, sans-serif" font-size="12">'
        + "".join(parts)
        + "</svg>"
    )


def _text(x: float, y: float, words: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{weight}>{escape(printable(words))}</text>'
