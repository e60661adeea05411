"""One HTML page that stands alone: opens from disk, needs no network, prints, reads aloud."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
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
from autofedavg.report.tables import Cell, Table, row_labels

if TYPE_CHECKING:
    from autofedavg.report.build import Report


@dataclass(frozen=True)
class Drawn:
    """A figure as the page holds it: a still picture, and what an interactive one is made from."""

    figure: Figure
    svg: str
    json: str


def drawn(figure: Figure, mark: str = "") -> Drawn:
    """Draws a figure for the page; the mark tells it from one of another study."""
    # Inside a script element only "<" could end it.
    spec = json.dumps(figure.interactive(), ensure_ascii=False).replace("<", "\\u003c")
    return Drawn(figure, _own_ids(draw.svg(figure.printed()), mark + figure.name), spec)


def _own_ids(svg: str, name: str) -> str:
    """The picture with its gradients and clips named after it, and counted from one.

    A page holds many pictures, and Vega counts on from one to the next: a figure would change with
    what is drawn before it.
    """
    found = dict.fromkeys(re.findall(r'\bid="((?:gradient|clip)\w*)"', svg))
    own = {old: f"{name}-{old.rstrip('_0123456789')}{n}" for n, old in enumerate(found, 1)}
    return re.sub(r'(\bid="|url\(#)(\w+)', lambda at: at[1] + own.get(at[2], at[2]), svg)


class Place:
    """Where a study stands in the page: how its parts, rows, cases and files are named.

    Attributes:
        mark: begins the name of every part; empty for the page's only study.
        files: the folder of its files, seen from the page.
        level: of its headings.
        whole: whether the scores of every case are in the page, not only in files.
        rows: a table line's label -> the label of the row it belongs to.
        cases: a row's name -> the name of the part with its cases.
        sites: a site's number.
    """

    def __init__(self, report: Report, study: str = "", number: int = 0, *, whole: bool) -> None:
        results = report.results
        self.name, self.whole, self.level = study, whole, 3 if study else 2
        self.mark, self.files = study_mark(number), study_files(study)
        self.short, self.progress = in_short(results), how_far(results)
        self.rows = row_labels(results)
        self._by_means = {row.name for row in results.rows if row.by_means}
        self.sites = {site: number for number, site in enumerate(results.sites)}
        self.cases = {
            row.name: f"{self.mark}cases-row{number}" for number, row in enumerate(results.rows, 1)
        }

    def link(self, cell: Cell) -> str:
        """Where the cases of a number are."""
        if cell.source is None:
            return ""
        row, site = cell.source
        if not self.whole:
            return f"{self.files}cases/{stem(row)}.csv"
        if site is None or row in self._by_means:
            return f"#{self.cases[row]}"
        return f"#{self.cases[row]}-site{self.sites[site]}"


@dataclass(frozen=True)
class Front:
    """The part before several studies, about them together; it is a place, too."""

    short: Sequence[str]
    tables: Sequence[Table]
    figures: Sequence[Drawn]
    rows: Mapping[str, str]
    mark: str = ""
    files: str = ""
    level: int = 2

    def link(self, cell: Cell) -> str:
        """Nowhere: cases are in the chapters."""
        return ""


def study_mark(number: int) -> str:
    """What begins the names of a study's parts in a page of several, counted from one."""
    return f"study{number}-" if number else ""


def study_files(study: str) -> str:
    """The folder of a study's files below a page of several."""
    return f"studies/{stem(study)}/" if study else ""


def page(report: Report, script: str = "") -> str:
    """The page of one study.

    Args:
        report: what it shows.
        script: one more script, of a server that shows the page live; it may ask that server.
    """
    results = report.results
    place = Place(report, whole=in_page([report]))
    about = f"{results.data}. {place.progress}"
    return rendered(results.title, about, [(report, place)], results.labels, script=script)


def in_page(reports: Sequence[Report]) -> bool:
    """Whether the scores of every case of these reports fit into a page."""
    return sum(table.numbers for each in reports for table in each.cases) <= MOST_IN_PAGE


def rendered(
    title: str,
    about: str,
    chapters: Sequence[tuple[Report, Place]],
    labels: Sequence[str],
    *,
    front: Front | None = None,
    script: str = "",
) -> str:
    """A page from its template.

    Args:
        title: its title.
        about: a line below it.
        chapters: every study with its place.
        labels: rows that can be shown and hidden.
        front: what stands before several studies.
        script: one more script.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise missing_extra("report", "jinja2") from None
    scripts = [draw.script(), _resource("page.js"), *([script] if script else [])]
    whole = Environment(
        loader=PackageLoader("autofedavg.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    ).get_template("page.html.j2")
    return whole.render(
        title=title,
        about=about,
        chapters=chapters,
        labels=labels,
        front=front,
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
