"""A whole report: the page, and every table and figure as files of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from autofedavg.experiment.files import make_folder
from autofedavg.experiment.folder_writer import disk_errors, write_atomically
from autofedavg.report import draw, provenance
from autofedavg.report.cases import CaseTable, case_file, case_tables, classes_table
from autofedavg.report.ceiling import ceiling_table
from autofedavg.report.costs import speed_table, time_table, traffic_table
from autofedavg.report.differences import differences_table
from autofedavg.report.examples import example_cases
from autofedavg.report.families import under_headings
from autofedavg.report.figures import all_figures
from autofedavg.report.figures.figure import Figure
from autofedavg.report.formats import FORMATS
from autofedavg.report.gallery import Examples, Group, Key, sheet
from autofedavg.report.over_rounds import events_table, learning_table, rounds_table, tested_table
from autofedavg.report.page import Drawn, drawn, page
from autofedavg.report.paying import paying_table
from autofedavg.report.privacy import privacy_table
from autofedavg.report.read import read_results
from autofedavg.report.repeats import Results, stem
from autofedavg.report.seed_gains import seeds_table
from autofedavg.report.tables import (
    Table,
    personal_table,
    sites_table,
    weights_table,
    worst_table,
)
from autofedavg.report.targets import targets_table
from autofedavg.report.trials import main_table
from autofedavg.tasks.base import Progress

LISTED = "files.json"  # what a report wrote beside its page
TABLES: Mapping[str, Sequence[Callable[[Results], Table | None]]] = {  # by part of the page
    "scores": (
        main_table,
        worst_table,
        personal_table,
        tested_table,
        rounds_table,
        classes_table,
        sites_table,
    ),
    "weights": (weights_table, learning_table, paying_table, ceiling_table),
    "training": (events_table,),
    "cases": (differences_table, seeds_table),
    "costs": (targets_table, traffic_table, time_table, speed_table, privacy_table),
    "origins": provenance.TABLES,
}


@dataclass(frozen=True)
class Report:
    """What was read, and all that is made from it."""

    results: Results
    tables: Mapping[str, Sequence[Table]]
    figures: Mapping[str, Sequence[Drawn]]
    cases: Sequence[CaseTable]
    examples: Examples

    @property
    def problem(self) -> str | None:
        """What was left out, and why."""
        return "; ".join(self.results.damaged) or None

    def page(self, script: str = "") -> str:
        """The page; with a script, the one of a server that shows it live."""
        return page(self, script)

    @property
    def files(self) -> dict[str, Callable[[], bytes]]:
        """Every file beside the page: its name, and what makes its content."""
        tables, figures = (chain(*of.values()) for of in (self.tables, self.figures))
        made = files_of(tables, figures)
        for group in self.examples.groups:
            name = f"figures/{group.name}"
            made[f"{name}.svg"] = _text(sheet, group, self.examples.key)
            made[f"{name}.pdf"] = partial(_pdf, group, self.examples.key)
        for row in self.results.rows:
            made[f"cases/{stem(row.name)}.csv"] = _text(case_file, row)
        return made

    def write(self, out: Path, progress: Progress | None = None) -> Path:
        """Writes everything below a folder, the page last.

        Returns:
            The page's file.
        """
        return write_files(out, self.files, self.page, progress)


def files_of(tables: Iterable[Table], figures: Iterable[Drawn]) -> dict[str, Callable[[], bytes]]:
    """Tables and figures as files: names, and what makes their content."""
    made: dict[str, Callable[[], bytes]] = {}
    for table in tables:
        for ending, write in FORMATS.values():
            made[f"tables/{table.name}.{ending}"] = _text(write, table)
    for figure in figures:
        name = f"figures/{figure.figure.name}"
        made[f"{name}.svg"] = partial(str.encode, figure.svg)
        made[f"{name}.pdf"] = partial(draw.pdf, figure.svg)
        made[f"{name}.csv"] = _text(Figure.csv, figure.figure)
    return made


def write_files(
    out: Path,
    files: Mapping[str, Callable[[], bytes]],
    page: Callable[[], str],
    progress: Progress | None = None,
) -> Path:
    """Writes a report's files below a folder, the page last; removes those of the one before.

    Returns:
        The page's file.
    """
    with disk_errors(out, "report again"):
        make_folder(out)
        _forget(out, set(files))
        for done, (name, make) in enumerate(files.items(), 1):
            path = out / name
            make_folder(path.parent)
            path.write_bytes(make())
            if progress:
                progress("writing files", done, len(files))
        write_atomically(out / "index.html", page().encode())
        write_atomically(out / LISTED, json.dumps(sorted(files), indent=1).encode())
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
    return report_on(results, examples=examples, method=method, progress=progress)


def report_on(
    results: Results,
    *,
    examples: Examples | bool = True,
    method: str = "",
    progress: Progress | None = None,
    mark: str = "",
) -> Report:
    """Draws all that can be drawn from what was read, as `build_report` does.

    The mark tells a study's figures from those of others in one page.
    """
    specified = all_figures(results)
    figures: dict[str, list[Drawn]] = {part: [] for part in specified}
    wanted = [(part, figure) for part in specified for figure in specified[part]]
    for done, (part, figure) in enumerate(wanted, 1):
        figures[part].append(drawn(figure, mark))
        if progress:
            progress("drawing figures", done, len(wanted))
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
    return {
        part: [under_headings(results, table) for make in makers if (table := make(results))]
        for part, makers in TABLES.items()
    }


def printed_tables(results: Results) -> list[Table]:
    """The tables that a terminal shows: scores, weights, ceilings, and targets where asked for."""
    made = report_tables(results)
    wanted = {"weights", "ceiling"} | ({"targets"} if results.targets else set())
    others = (*made["costs"], *made["weights"])
    return [*made["scores"], *(table for table in others if table.name in wanted)]


def _text(write: Callable[..., str], *what: Any) -> Callable[[], bytes]:
    return lambda: write(*what).encode()


def _pdf(group: Group, key: Sequence[Key]) -> bytes:
    return draw.pdf(sheet(group, key))
