"""Rebuilds every table and figure of published runs in the documentation: `python docs/rebuild.py`.

A table stands between `<!-- results: STUDY TABLE -->` and `<!-- /results -->`. Studies that ask one
question of different data stand side by side in tables and figures of their own, `ACROSS`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from autofedavg.report.build import report_tables
from autofedavg.report.figures import all_figures
from autofedavg.report.figures.figure import COLOURS, INK, Data, Figure, Spec
from autofedavg.report.formats import to_markdown
from autofedavg.report.page import drawn
from autofedavg.report.read import Results, Row, read_results
from autofedavg.report.tables import Cell, Table, mark_best, percent_cell

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "reproduction.md")
BLOCK = re.compile(r"(<!-- results: (\S+) (\S+) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)
FIGURES = {  # file in docs/img: study, figure
    "lgg-alpha.svg": ("study-lgg", "alpha"),
    "lgg-differences.svg": ("study-lgg", "differences"),
    "bad-site-alpha.svg": ("study-bad-site", "alpha"),
    "bad-site-settings.svg": ("ablation-bad-site", "settings"),
    "bad-sites.svg": ("bad-sites", "across"),
}
RULES = ("fedavg", "fedavg-even")
CHOSEN = "FedAvg - size or even, by validation"
ACROSS = {  # a question: its studies, by what differs between them
    "bad-sites": {
        "none": "demo",
        "I, the largest": "study-bad-site",
        "III": "study-bad-middle-site",
        "II, the smallest": "study-bad-small-site",
        "I, and validation": "study-bad-site-votes",
    }
}


@cache
def results(study: str) -> Results:
    return read_results([ROOT / "results" / study])


@cache
def tables(study: str) -> dict[str, str]:
    """Every table of a study, or of studies side by side, as Markdown, by name."""
    if study in ACROSS:
        made = (across_table(study), repeats_table(study))
        return {table.name: to_markdown(table) for table in made}
    parts = report_tables(results(study)).values()
    return {table.name: to_markdown(table) for part in parts for table in part}


def figure(study: str, name: str) -> str:
    """A figure of a study as the report draws it, on white: pages may be dark."""
    if study in ACROSS:
        one = across_figure(study)
    else:
        parts = all_figures(results(study)).values()
        (one,) = (f for part in parts for f in part if f.name == name)
    return drawn(one).svg.replace("<svg ", '<svg style="background: white" ', 1) + "\n"


def across(question: str) -> dict[str, dict[str, list[float]]]:
    """Label -> study -> global test avg of every repeat, of the rows that all studies have."""
    studies = {name: results(study) for name, study in ACROSS[question].items()}
    shared = set.intersection(*({row.name for row in each.rows} for each in studies.values()))
    found: dict[str, dict[str, list[float]]] = {}
    for name, each in studies.items():
        for row in (row for row in each.rows if row.name in shared):
            values = [s.global_test_avg for s in row.summaries if s.global_test_avg is not None]
            if values:
                found.setdefault(row.label, {})[name] = values
            if row.name == RULES[-1]:
                found.setdefault(CHOSEN, {})[name] = chosen(each)
    return found


def chosen(study: Results) -> list[float]:
    """Global test avg of every repeat by whichever fixed rule validates better in it."""
    rules = [row for row in study.rows if row.name in RULES]
    tested = [dict(zip(row.whole, row.summaries, strict=True)) for row in rules]
    found = []
    for seed in tested[0]:
        options = [
            (validated(row, seed), mine[seed].global_test_avg or 0.0)
            for row, mine in zip(rules, tested, strict=True)
        ]
        found.append(max(options)[1])
    return found


def validated(row: Row, seed: int) -> float:
    """The validation score by which this repeat's model was selected."""
    lines = [line for r in row.repeats if r.seed == seed for line in r.rounds]
    return max(float(line["validation"]["mean"]) for line in lines)


def across_table(question: str) -> Table:
    """Rows by studies: global test avg, and how far a row is behind the best where it is most."""
    marked = mark_best(
        [
            (label, tuple(percent_cell(values) for values in studies.values()))
            for label, studies in across(question).items()
        ]
    )
    values = [[cell.value or 0.0 for cell in cells] for _, cells in marked]
    best = [max(column) for column in zip(*values, strict=True)]
    behind = [max(b - v for b, v in zip(best, mine, strict=True)) for mine in values]
    rows = tuple(
        (label, (*cells, Cell(most))) for (label, cells), most in zip(marked, behind, strict=True)
    )
    (repeats,) = {len(v) for studies in across(question).values() for v in studies.values()}
    notes = (
        f"Global test avg, in percent; best per column marked. {repeats} repeats (seeds) each, ± "
        "is the standard deviation over them. Last column: points behind the best row, where they "
        "are most.",
    )
    heads = (*ACROSS[question], "furthest behind")
    return Table("scores", "Site with mirrored training labels", heads, rows, notes)


def repeats_table(question: str) -> Table:
    """In how many repeats a row is above the first one's with the same seed, by studies."""
    found = across(question)
    found.pop(CHOSEN)  # in most repeats it is one of the others
    (first, against), *others = found.items()

    def above(study: str, values: Sequence[float]) -> Cell:
        pairs = list(zip(values, against[study], strict=True))
        return Cell(text=f"{sum(mine > other for mine, other in pairs)} of {len(pairs)}")

    rows = tuple(
        (label, tuple(above(study, values) for study, values in studies.items()))
        for label, studies in others
    )
    notes = (f"Seeds in which the global test avg is above that of {first} with the same seed.",)
    return Table("repeats", f"Repeats above {first}", tuple(ACROSS[question]), rows, notes)


def across_figure(question: str) -> Figure:
    """A panel for every study: each row's repeats, and their mean."""
    data: Data = [
        {"row": label, "study": name, "score": 100 * value}
        for label, studies in across(question).items()
        for name, values in studies.items()
        for value in values
    ]
    names, labels = list(ACROSS[question]), list(across(question))
    y: Spec = {"field": "row", "type": "nominal", "title": None, "sort": labels}
    x: Spec = {"field": "score", "type": "quantitative", "title": "global test avg, %",
               "scale": {"zero": False}}  # fmt: skip
    spec: Spec = {
        "data": {"values": data},
        "columns": 2,
        "facet": {"field": "study", "type": "nominal", "sort": names,
                  "title": "site with mirrored training labels"},
        "spec": {"width": 250, "height": {"step": 22}, "layer": [
            {"mark": {"type": "circle", "size": 40, "color": COLOURS[0], "opacity": 0.6},
             "encoding": {"x": x, "y": y}},
            {"mark": {"type": "tick", "color": INK, "thickness": 3, "height": 16},
             "encoding": {"x": {**x, "aggregate": "mean"}, "y": y}},
        ]},
    }  # fmt: skip
    return Figure("across", "Whichever site is bad", "", data, spec)


def rebuilt(page: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda m: m[1] + tables(m[2])[m[3]] + m[5], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rebuilt(path.read_text()))
    for file, (study, name) in FIGURES.items():
        (ROOT / "docs" / "img" / file).write_text(figure(study, name))
