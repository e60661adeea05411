"""Rebuilds every table and figure of published runs in the documentation: `python docs/rebuild.py`.

A table stands between `<!-- results: STUDY TABLE -->` and `<!-- /results -->`. Studies that differ
in which site is bad stand side by side in tables and a figure of their own, `BAD_SITES`. Studies
that share rows have the report's overview, `TOGETHER`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import recorded
import travel

from autofedavg.report.build import report_tables
from autofedavg.report.costs import extra_traffic
from autofedavg.report.differences import repeats_above
from autofedavg.report.figures import all_figures
from autofedavg.report.figures.critical_difference import critical_difference_figure
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.risks import risks_figure
from autofedavg.report.figures.series import alpha_series, means
from autofedavg.report.figures.vega import COLOURS, INK, Data, Spec
from autofedavg.report.formats import to_markdown
from autofedavg.report.over_rounds import on_the_way
from autofedavg.report.overview import Overview
from autofedavg.report.overview_tables import overview_tables
from autofedavg.report.page import drawn
from autofedavg.report.picks import selected
from autofedavg.report.read import read_results
from autofedavg.report.repeats import Results, Row
from autofedavg.report.tables import Cell, Table, mark_best, percent_cell

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "reproduction.md", ROOT / "results" / "README.md")
BLOCK = re.compile(r"(<!-- results: (\S+) (\S+) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)
FIGURES = {  # file in docs/img: study, figure
    "cifar10-tested.svg": ("table1-cifar10", "tested"),
    "cifar10-first-rounds.svg": ("study-few-rounds", "tested"),
    "skew-tested.svg": ("bench-skew", "tested"),
    "strong-skew-tested.svg": ("bench-strong-skew-tuned", "tested"),
    "messages-bytes.svg": ("study-messages", "bytes"),
    "lgg-alpha.svg": ("study-lgg", "alpha"),
    "lgg-differences.svg": ("study-lgg", "differences"),
    "lgg-bad-alpha.svg": ("study-lgg-bad-site", "alpha"),
    "hospitals-seeds.svg": ("bench-hospitals-tuned", "seeds"),
    "good-hospitals-seeds.svg": ("bench-good-hospitals-tuned", "seeds"),
    "whichever-site.svg": ("tuned-hospitals", "risks"),
    "lgg-bad-seeds.svg": ("bench-lgg-bad-site-tuned", "seeds"),
    "lgg-small-seeds.svg": ("bench-lgg-small-tuned", "seeds"),
    "bad-site-alpha.svg": ("study-bad-site", "alpha"),
    "bad-site-settings.svg": ("ablation-bad-site", "settings"),
    "bad-sites.svg": ("bad-sites", "across"),
    "front.svg": ("study-bad-site", "front"),
    "ranks.svg": ("seven-studies", "critical-difference"),
    "tuned-ranks.svg": ("tuned-studies", "critical-difference"),
}
PRINTED = {  # row of table1-cifar10: the paper's Table 1, where the first five are FedMA's numbers
    "fedavg": 86.29,
    "fedprox": 85.32,
    "ensemble": 75.29,
    "ensemble-150": 75.29,
    "fedma": 87.53,
    "l-softmax": 88.64,
    "l-dirichlet": 88.37,
    "n-softmax": 88.60,
    "n-dirichlet": 88.98,
}
EXACT = {"study-messages": "bench-skew", "study-messages-lgg": "study-lgg"}  # has the float32 rows
WORTH = {  # where its table is: study and row that learn in every round, FedAvg for longer, rounds
    "study-few-rounds": ("study-few-rounds", "n-dirichlet", "table1-cifar10", (1, 2, 5, 10)),
    "bench-skew-long": ("bench-skew", "n-softmax", "bench-skew-long", (1, 2, 5, 9)),
}
RULES = ("fedavg", "fedavg-even")
CHOSEN = "FedAvg - size or even, by validation"
ARCHIVES = "archives"  # the name of all of them
ACROSS = "bad-sites"  # the name of these studies together
BAD_SITES = {  # which site is bad: the study
    "none": "demo",
    "I, the largest": "study-bad-site",
    "III": "study-bad-middle-site",
    "II, the smallest": "study-bad-small-site",
    "I, and validation": "study-bad-site-votes",
}
SEVEN, TUNED, ALL_TUNED = "seven-studies", "tuned-hospitals", "tuned-studies"
RANKED = ("table1-cifar10", "study-lgg", *BAD_SITES.values())
TOGETHER = {  # name of studies together: what each is called, the study
    SEVEN: {study: study for study in RANKED},  # they share the paper's rows
    TUNED: {  # every method, tuned
        "none is bad": "bench-good-hospitals-tuned",
        "I, the largest": "bench-hospitals-tuned",
        "III, the second": "bench-middle-hospital-tuned",
        "II, the smallest": "bench-small-hospital-tuned",
    },
    ALL_TUNED: {
        "generated, none bad": "bench-good-hospitals-tuned",
        "generated, I bad": "bench-hospitals-tuned",
        "generated, III bad": "bench-middle-hospital-tuned",
        "generated, II bad": "bench-small-hospital-tuned",
        "real, none bad": "bench-lgg-small-tuned",
        "real, DU bad": "bench-lgg-bad-site-tuned",
        "CIFAR-10, Dir(0.1)": "bench-strong-skew-tuned",
    },
}


@cache
def results(study: str) -> Results:
    return read_results([ROOT / "results" / f"{study}.zip"])


@cache
def tables(study: str) -> dict[str, str]:
    """Every table of a study, or of studies side by side, as Markdown, by name."""
    if study == ACROSS:
        beside = (across_table(), repeats_table())
        return {table.name: to_markdown(table) for table in beside}
    if study in TOGETHER:
        return {table.name: to_markdown(table) for table in overview_tables(overview(study))}
    if study == ARCHIVES:
        table = recorded.recorded_table([*(ROOT / "results").glob("*.zip")])
        return {table.name: to_markdown(table)}
    made = [table for part in report_tables(results(study)).values() for table in part]
    if study == "table1-cifar10":
        made.append(printed_table())
    elif study in WORTH:
        made.append(worth_table(study))
    elif study in EXACT:
        made.append(travel.travel_table(results(study), results(EXACT[study])))
    return {table.name: to_markdown(table) for table in made}


@cache
def overview(together: str) -> Overview:
    """Studies that share rows."""
    return Overview({name: results(study) for name, study in TOGETHER[together].items()})


def figure(study: str, name: str) -> str:
    """A figure of a study as the report draws it, on white: pages may be dark."""
    if study == ACROSS:
        one = across_figure()
    elif study in TOGETHER:
        shared = overview(study)
        drawings = (critical_difference_figure(shared), risks_figure(shared))
        (one,) = (f for f in drawings if f and f.name == name)
    elif name == "front":
        one = front_figure(results(study))
    else:
        drawn_from = results(study)
        if study in EXACT:
            drawn_from = travel.beside(drawn_from, results(EXACT[study]))
        parts = all_figures(drawn_from).values()
        (one,) = (f for part in parts for f in part if f.name == name)
    return drawn(one).svg.replace("<svg ", '<svg style="background: white" ', 1) + "\n"


def printed_table() -> Table:
    """The paper's accuracies beside those of the published runs."""
    rows = []
    for row in (row for row in results("table1-cifar10").rows if row.name in PRINTED):
        paper = PRINTED[row.name]
        here = percent_cell(summary.global_test_avg for summary in row.summaries)
        rows.append((row.label, (Cell(paper), here, Cell((here.value or 0.0) - paper))))
    heads, title = ("paper", "here", "here - paper"), "The paper's Table 1"
    messages = (
        "Accuracy after the last round, in percent; ± over three seeds, other rows have one.",
        "Of FedMA the paper also has 87.47, from an implementation of its own.",
    )
    return Table("printed", title, heads, tuple(rows), messages)


def named(study: str, name: str) -> Row:
    """A row of a study."""
    return next(row for row in results(study).rows if row.name == name)


def worth_table(study: str) -> Table:
    """Scores after rounds with learned weights, and FedAvg's after as many rounds, or bytes."""
    first, row, longer, counts = WORTH[study]
    learned, short = named(first, row), named(first, "fedavg")
    others = named(longer, "fedavg")
    _, extra = extra_traffic(learned) or (0.0, 0.0)
    rows = []
    for n in counts:
        same = int(n * (1 + extra))  # rounds of FedAvg, whole ones, for the same bytes
        cells = [percent_cell(on_the_way(row, [t])[t]) for row, t in ((learned, n), (short, n))]
        cells += [Cell(float(same), text=str(same)), percent_cell(on_the_way(others, [same])[same])]
        rows.append((str(n), tuple(cells)))
    heads = (learned.label, f"{short.label}, as many rounds", "rounds for as many bytes",
             f"{short.label}, as many bytes")  # fmt: skip
    message = (
        "Test score after so many rounds in which the weights are learned. Bytes are those of "
        "training and of learning the weights; FedAvg's later rounds are those of its runs of "
        f"{len(others.repeats[0].rounds)} ({len(others.whole)} seeds)."
    )
    title = "The same number of rounds, the same number of bytes"
    return Table("worth", title, heads, tuple(rows), (message,))


@cache
def across() -> dict[str, dict[str, list[float]]]:
    """Label -> bad site -> global test avg of every repeat, of the rows that all studies have."""
    found: dict[str, dict[str, list[float]]] = {}
    for site, study in BAD_SITES.items():
        for row in shared_rows(study):
            values = [summary.global_test_avg or 0.0 for summary in row.summaries]
            found.setdefault(row.label, {})[site] = values
            if row.name == RULES[-1]:
                found.setdefault(CHOSEN, {})[site] = chosen(results(study))
    return found


def shared_rows(study: str) -> list[Row]:
    """The rows of a study that all have."""
    names = set.intersection(*({row.name for row in results(s).rows} for s in BAD_SITES.values()))
    return [row for row in results(study).rows if row.name in names]


def chosen(study: Results) -> list[float]:
    """Global test avg of every repeat by whichever fixed rule validates better in it."""
    options: dict[int, list[tuple[float, float]]] = {}
    for row in (row for row in study.rows if row.name in RULES):
        for repeat, summary in zip(row.finished, row.summaries, strict=True):
            tested = summary.global_test_avg or 0.0
            options.setdefault(repeat.seed, []).append((selected(repeat) or 0.0, tested))
    return [max(found)[1] for found in options.values()]


def across_table() -> Table:
    """Rows by studies: global test avg, and how far a row is behind the best where it is most."""
    marked = mark_best(
        [
            (label, tuple(percent_cell(values) for values in studies.values()))
            for label, studies in across().items()
        ]
    )
    values = [[cell.value or 0.0 for cell in cells] for _, cells in marked]
    best = [max(column) for column in zip(*values, strict=True)]
    behind = [max(b - v for b, v in zip(best, mine, strict=True)) for mine in values]
    rows = tuple(
        (label, (*cells, Cell(most))) for (label, cells), most in zip(marked, behind, strict=True)
    )
    (repeats,) = {len(v) for studies in across().values() for v in studies.values()}
    messages = (
        f"Global test avg, in percent; best per column marked. {repeats} repeats (seeds) each, ± "
        "is the standard deviation over them. Last column: points behind the best row, where they "
        "are most.",
    )
    heads = (*BAD_SITES, "furthest behind")
    return Table("scores", "Site with mirrored training labels", heads, rows, messages)


def repeats_table() -> Table:
    """In how many repeats a row is above FedAvg with the same seed, by studies."""
    rows: dict[str, list[Cell]] = {}
    for study in BAD_SITES.values():
        first, *others = shared_rows(study)
        for row in others:
            rows.setdefault(row.label, []).append(repeats_above(row, first))
    messages = (
        f"Seeds in which the global test avg is above that of {first.label} with the same seed.",
    )
    lines = tuple((label, tuple(cells)) for label, cells in rows.items())
    return Table("repeats", f"Repeats above {first.label}", tuple(BAD_SITES), lines, messages)


def across_figure() -> Figure:
    """A panel for every study: each row's repeats, and their mean."""
    data: Data = [
        {"row": label, "study": name, "score": 100 * value}
        for label, studies in across().items()
        for name, values in studies.items()
        for value in values
    ]
    names, labels = list(BAD_SITES), list(across())
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


def front_figure(study: Results) -> Figure:
    """Learned weights over the rounds, and the constant one that FedAvg gives the bad site."""
    learned, size = study.row("n-dirichlet"), study.row("fedavg")
    first, *others = study.sites
    bad = f"{first}, wrong labels"
    data: Data = [
        {"round": item["t"], "alpha": item["alpha"], "row": "Auto-FedAvg",
         "site": bad if item["site"] == first else item["site"]}
        for item in means(alpha_series(study, learned), "alpha", "site")
    ]  # fmt: skip
    data += [
        {"round": item["t"], "alpha": item["alpha"], "row": "FedAvg", "site": bad}
        for item in means(alpha_series(study, size), "alpha", "site")
        if item["site"] == first
    ]
    spec: Spec = {
        "data": {"values": data},
        "width": 480,
        "height": 200,
        "mark": {"type": "line", "strokeWidth": 2.5},
        "encoding": {
            "x": {"field": "round", "type": "quantitative", "axis": {"tickMinStep": 1}},
            "y": {"field": "alpha", "type": "quantitative", "title": "aggregation weight"},
            "color": {"field": "site", "type": "nominal", "scale": {"range": COLOURS[:3]},
                      "sort": [bad, *others]},
            "strokeDash": {"field": "row", "type": "nominal", "title": "method"},
        },
    }  # fmt: skip
    return Figure("front", "A bad site loses its weight", "", data, spec)


def rebuilt(page: str) -> str:
    """A page with its tables rebuilt."""
    return BLOCK.sub(lambda m: m[1] + tables(m[2])[m[3]] + m[5], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rebuilt(path.read_text()))
    for file, (study, name) in FIGURES.items():
        (ROOT / "docs" / "img" / file).write_text(figure(study, name))
