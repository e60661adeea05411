"""A whole report: the page, and every table and figure as files of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.experiment.folder_writer import disk_errors, write_atomically
from autofedavg.report import draw
from autofedavg.report.cases import CaseTable, case_file, case_tables, classes_table
from autofedavg.report.costs import speed_table, time_table, traffic_table
from autofedavg.report.differences import differences_table
from autofedavg.report.examples import Examples, example_cases
from autofedavg.report.figures import all_figures
from autofedavg.report.figures.figure import Figure
from autofedavg.report.formats import FORMATS
from autofedavg.report.gallery import Group, groups, sheet
from autofedavg.report.over_rounds import events_table, learning_table, rounds_table, tested_table
from autofedavg.report.page import Drawn, drawn, page
from autofedavg.report.provenance import (
    data_table,
    differing_table,
    machines_table,
    runs_table,
    settings_table,
)
from autofedavg.report.read import read_results
from autofedavg.report.repeats import Results, stem
from autofedavg.report.tables import Table, scores_table, sites_table, weights_table
from autofedavg.tasks.base import Progress

LISTED = "files.json"  # what a report wrote beside its page


@dataclass(frozen=True)
class Report:
    """What was read, and all that is made from it."""

    results: Results
    tables: Mapping[str, Sequence[Table]]
    figures: Mapping[str, Sequence[Drawn]]
    cases: Sequence[CaseTable]
    examples: Examples

    @property
    def title(self) -> str:
        return self.results.title

    @property
    def problem(self) -> str | None:
        """What was left out, and why."""
        return "; ".join(self.results.damaged) or None

    def page(self, script: str = "") -> str:
        """The page; with a script, the one of a server that shows it live."""
        return page(self.results, self.tables, self.figures, self.cases, self.examples, script)

    @property
    def files(self) -> dict[str, Callable[[], bytes]]:
        """Every file beside the page: its name, and what makes its content."""
        made: dict[str, Callable[[], bytes]] = {}
        for table in (table for part in self.tables.values() for table in part):
            for ending, write in FORMATS.values():
                made[f"tables/{table.name}.{ending}"] = _text(write, table)
        for figure in (figure for part in self.figures.values() for figure in part):
            name = f"figures/{figure.figure.name}"
            made[f"{name}.svg"] = partial(str.encode, figure.svg)
            made[f"{name}.pdf"] = partial(draw.pdf, figure.svg)
            made[f"{name}.csv"] = _text(Figure.csv, figure.figure)
        for group in groups(self.examples):
            drawing = partial(sheet, key=self.examples.key)
            made[f"figures/{group.name}.svg"] = _text(drawing, group)
            made[f"figures/{group.name}.pdf"] = partial(_pdf, drawing, group)
        for row in self.results.rows:
            made[f"cases/{stem(row.name)}.csv"] = _text(case_file, row)
        return made

    def write(self, out: Path, progress: Progress | None = None) -> Path:
        """Writes everything below a folder, the page last.

        Returns:
            The page's file.
        """
        if out.exists() and not out.is_dir():
            raise RunError("this is a file", where=str(out), remedy="name a folder for the report")
        with disk_errors(out, "report again"):
            _forget(out, set(self.files))
            for done, (name, make) in enumerate(self.files.items(), 1):
                path = out / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(make())
                if progress:
                    progress("writing files", done, len(self.files))
            write_atomically(out / "index.html", self.page().encode())
            write_atomically(out / LISTED, json.dumps(sorted(self.files), indent=1).encode())
        return out / "index.html"


def build_report(
    paths: Sequence[Path],
    baseline: str = "",
    *,
    examples: Examples | bool = True,
    method: str = "",
    progress: Progress | None = None,
    spare_damaged: bool = False,
) -> Report:
    """Reads run folders and draws all that can be drawn from them.

    Args:
        paths: run folders, or folders above them.
        baseline: row to test against; the study's own when empty.
        examples: whether to draw example cases, for which models are applied again; or those
            drawn before.
        method: row that they compare with the baseline; chosen by rule when empty.
        progress: told of long work.
        spare_damaged: whether damaged folders are left out and told, as long as there are others.

    Raises:
        RunError: a folder is damaged, or the runs do not belong into one report.
        MissingExtra: the packages that draw are not installed.
    """
    results = read_results(paths, baseline, progress, spare_damaged=spare_damaged)
    specified = all_figures(results)
    total = sum(len(part) for part in specified.values())
    figures: dict[str, list[Drawn]] = {}
    done = 0
    for part, wanted in specified.items():
        figures[part] = []
        for figure in wanted:
            figures[part].append(drawn(figure))
            done += 1
            if progress:
                progress("drawing figures", done, total)
    if examples is True:
        examples = example_cases(results, method, progress)
    elif examples is False:
        examples = Examples("", "", notes=("Left out, as asked.",))
    return Report(results, report_tables(results), figures, case_tables(results), examples)


def _forget(out: Path, kept: set[str]) -> None:
    """Removes what an earlier report wrote here and this one does not: pictures, rows, figures."""
    try:
        before = set(json.loads((out / LISTED).read_bytes()))
    except (OSError, ValueError, TypeError):
        return
    for name in before - kept:
        if ".." not in Path(name).parts and not Path(name).is_absolute():
            (out / name).unlink(missing_ok=True)


def report_tables(results: Results) -> dict[str, list[Table]]:
    """The tables by the part of the page they belong to; only those that have rows."""
    parts: dict[str, list[Table | None]] = {
        "scores": [
            scores_table(results),
            tested_table(results),
            rounds_table(results),
            classes_table(results),
            sites_table(results),
        ],
        "weights": [weights_table(results), learning_table(results)],
        "training": [events_table(results)],
        "cases": [differences_table(results)],
        "costs": [traffic_table(results), time_table(results), speed_table(results)],
        "origins": [
            runs_table(results),
            machines_table(results),
            data_table(results),
            settings_table(results),
            differing_table(results),
        ],
    }
    return {part: [table for table in made if table] for part, made in parts.items()}


def _text(write: Callable[[Any], str], what: Any) -> Callable[[], bytes]:
    return lambda: write(what).encode()


def _pdf(drawing: Callable[[Group], str], group: Group) -> bytes:
    return draw.pdf(drawing(group))
