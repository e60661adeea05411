"""Rebuilds every table and figure of published runs in the documentation: `python docs/rebuild.py`.

A table stands between `<!-- results: STUDY TABLE -->` and `<!-- /results -->`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from autofedavg.report.build import report_tables
from autofedavg.report.figures import all_figures
from autofedavg.report.formats import to_markdown
from autofedavg.report.page import drawn
from autofedavg.report.read import Results, read_results

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "reproduction.md")
BLOCK = re.compile(r"(<!-- results: (\S+) (\S+) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)
FIGURES = {  # file in docs/img: study, figure
    "lgg-alpha.svg": ("study-lgg", "alpha"),
    "lgg-differences.svg": ("study-lgg", "differences"),
    "bad-site-alpha.svg": ("study-bad-site", "alpha"),
}


@cache
def results(study: str) -> Results:
    return read_results([ROOT / "results" / study])


@cache
def tables(study: str) -> dict[str, str]:
    """Every table of a study as Markdown, by name."""
    made = report_tables(results(study))
    return {table.name: to_markdown(table) for part in made.values() for table in part}


def figure(study: str, name: str) -> str:
    """A figure of a study as the report draws it, on white: pages may be dark."""
    found = [f for part in all_figures(results(study)).values() for f in part if f.name == name]
    (one,) = found
    return drawn(one).svg.replace("<svg ", '<svg style="background: white" ', 1) + "\n"


def rebuilt(page: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda m: m[1] + tables(m[2])[m[3]] + m[5], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rebuilt(path.read_text()))
    for file, (study, name) in FIGURES.items():
        (ROOT / "docs" / "img" / file).write_text(figure(study, name))
