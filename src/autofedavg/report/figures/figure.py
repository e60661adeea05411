"""What a figure is: a Vega-Lite specification, the table behind it, and words for it.

One specification gives the picture in the page, the SVG and the PDF, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autofedavg.core.errors import printable
from autofedavg.report.figures.vega import COLOURS, INK, Data, Spec
from autofedavg.report.formats import to_sheet

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
STYLE: Spec = {
    "background": None,
    "aria": False,  # the figure itself is described; words for every dot would bury that
    "font": "Arial, Helvetica, Liberation Sans, sans-serif",  # as wide as what is measured with
    "padding": 8,
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK, "titleColor": INK, "domainColor": INK, "tickColor": INK,
        "gridColor": INK, "gridOpacity": 0.14, "domainOpacity": 0.5, "tickOpacity": 0.5,
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 220,
    },
    "legend": {
        "labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12,
        "titleFontWeight": "normal", "labelLimit": 260, "symbolLimit": 60,
    },
    "header": {
        "labelColor": INK, "titleColor": INK, "labelFontSize": 13, "labelFontWeight": "bold",
        "labelLimit": 300,
    },
    "title": {"color": INK, "fontSize": 13, "anchor": "start"},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": INK},
    "range": {"category": list(COLOURS), "heatmap": {"scheme": "viridis"}},
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: its file's name without ending.
        title: what it shows.
        caption: how to read it, and what is not in it.
        data: the values drawn, as a table; all of them, though a picture may show fewer.
        spec: Vega-Lite, interactive.
        still: Vega-Lite for paper, where the interactive one needs a slider.
        about: what it says, for those who do not see it; a still picture has no other words.
        row: label of the one row it is about, if it is about one.
    """

    name: str
    title: str
    caption: str
    data: Data
    spec: Spec
    still: Spec | None = None
    about: str = ""
    row: str = ""

    def interactive(self) -> Spec:
        """The whole specification for the page."""
        return self._finished(self.spec)

    def printed(self) -> Spec:
        """The whole specification for SVG and PDF."""
        return self._finished(self.still or self.spec)

    def csv(self) -> str:
        """The table behind it."""
        heads = list(dict.fromkeys(key for row in self.data for key in row))
        return to_sheet([heads, *([row.get(head, "") for head in heads] for row in self.data)])

    def _finished(self, spec: Spec) -> Spec:
        """A specification with the house's style and a description.

        Control characters are replaced: XML has no way to write them, and the drawing would end.
        """
        about = self.about or self.title
        whole: Spec = _plain({"$schema": SCHEMA, "description": about, "config": STYLE, **spec})
        return whole


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else printable(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
