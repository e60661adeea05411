"""One HTML page that stands alone: opens from disk, needs no network, prints, reads aloud."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

from autofedavg.core.errors import missing_extra
from autofedavg.report import draw
from autofedavg.report.cases import MOST_IN_PAGE
from autofedavg.report.differences import shown_p
from autofedavg.report.figures.figure import Figure
from autofedavg.report.repeats import stem
from autofedavg.report.summary import how_far, in_short
from autofedavg.report.tables import Cell, row_labels

if TYPE_CHECKING:
    from autofedavg.report.build import Report


@dataclass(frozen=True)
class Drawn:
    """A figure as the page holds it: a still picture, and what an interactive one is made from."""

    figure: Figure
    svg: str
    json: str


def drawn(figure: Figure) -> Drawn:
    """Draws a figure for the page."""
    # Inside a script element only "<" could end it.
    spec = json.dumps(figure.interactive(), ensure_ascii=False).replace("<", "\\u003c")
    return Drawn(figure, _own_ids(draw.svg(figure.printed()), figure.name), spec)


def _own_ids(svg: str, name: str) -> str:
    """The picture with its gradients and clips named after it, and counted from one.

    A page holds many pictures, and Vega counts on from one to the next: a figure would change with
    what is drawn before it.
    """
    found = dict.fromkeys(re.findall(r'\bid="((?:gradient|clip)\w*)"', svg))
    own = {old: f"{name}-{old.rstrip('_0123456789')}{n}" for n, old in enumerate(found, 1)}
    return re.sub(r'(\bid="|url\(#)(\w+)', lambda at: at[1] + own.get(at[2], at[2]), svg)


def page(report: Report, script: str = "") -> str:
    """The whole page.

    Args:
        report: what it shows.
        script: one more script, of a server that shows the page live; it may ask that server.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise missing_extra("report", "jinja2") from None
    results = report.results
    in_page = sum(table.numbers for table in report.cases) <= MOST_IN_PAGE
    number_of = {site: number for number, site in enumerate(results.sites)}
    id_of = {row.name: f"cases-row{number}" for number, row in enumerate(results.rows, 1)}
    by_means = {row.name for row in results.rows if row.by_means}
    scripts = [draw.script(), _resource("page.js"), *([script] if script else [])]
    whole = Environment(
        loader=PackageLoader("autofedavg.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    ).get_template("page.html.j2")

    def link_of(cell: Cell) -> str:
        if cell.source is None:
            return ""
        row, site = cell.source
        if not in_page:
            return f"cases/{stem(row)}.csv"
        if site is None or row in by_means:
            return f"#{id_of[row]}"
        return f"#{id_of[row]}-site{number_of[site]}"

    return whole.render(
        report=report,
        results=results,
        cases_in_page=in_page,
        number_of=number_of,
        id_of=id_of,
        row_of=row_labels(results),
        short=in_short(results),
        progress=how_far(results),
        link_of=link_of,
        shown_p=shown_p,
        stem=stem,
        policy=_policy(scripts, live=bool(script)),
        style=_resource("page.css"),
        scripts=scripts,
        version=version("autofedavg"),
    )


def _policy(scripts: Sequence[str], *, live: bool) -> str:
    """Only our own scripts run, and nothing is fetched but by a live page from its server."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()) for script in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    asked = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {asked}; base-uri 'none'; form-action 'none'"
    )


def _resource(name: str) -> str:
    return files("autofedavg.report").joinpath(name).read_text(encoding="utf-8")
