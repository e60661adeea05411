"""Several studies in one report: a chapter for each, and an overview before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autofedavg.core.errors import RunError, did_you_mean
from autofedavg.experiment.archive_reader import archives_named, as_folder
from autofedavg.experiment.folder import STUDY, read_json, run_paths, study_home
from autofedavg.report.build import Report, files_of, printed_tables, report_on, write_files
from autofedavg.report.figures.critical_difference import critical_difference_figure
from autofedavg.report.figures.risks import risks_figure
from autofedavg.report.overview import Overview
from autofedavg.report.overview_tables import overview_tables
from autofedavg.report.page import (
    Drawn,
    Front,
    Place,
    drawn,
    in_page,
    rendered,
    study_files,
    study_mark,
)
from autofedavg.report.read import read_results
from autofedavg.report.repeats import Results
from autofedavg.report.tables import Table
from autofedavg.tasks.base import Progress

TITLE = "Several studies"
OUTSIDE = "runs"  # runs that lie in no study's folder


@archives_named()
def by_study(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Study -> what to read of it. Paths that lead to one study only are left as they are.

    Runs of one name of study belong together, wherever they lie. A study below a path is read
    whole, so that runs that it lacks are named; runs outside of any study are one more.

    Raises:
        RunError: there is no run, or a folder is damaged.
    """
    found: dict[str, dict[Path, None]] = {}
    names: dict[Path, str] = {}
    for path in paths:
        here = as_folder(path).resolve()
        for run in run_paths([path]):
            home = study_home(run)
            if home is None:
                found.setdefault(OUTSIDE, {})[run] = None
                continue
            if home not in names:
                names[home] = str(read_json(home / STUDY).get("name", home.name))
            part = here != home and here.is_relative_to(home)  # of a study: a row, or a run
            found.setdefault(names[home], {})[path if part else home] = None
    named = [name for name in found if name != OUTSIDE]
    if len(named) < 2:
        return {name: list(paths) for name in (named or [OUTSIDE])}
    return {name: list(places) for name, places in found.items()}


def read_studies(
    paths: Sequence[Path],
    baseline: str = "",
    progress: Progress | None = None,
    *,
    targets: Sequence[float] = (),
) -> Overview:
    """Reads one or more studies, each as `read_results` does.

    Args:
        paths: run folders, archives, or folders above them.
        baseline: name of the row to test against; every study's own when empty.
        progress: told of every folder.
        targets: scores in percent to be reached; by rule when empty.

    Raises:
        RunError: a folder is damaged, or runs of one study do not belong into one table.
    """
    found = {}
    for name, places in by_study(paths).items():
        results = read_results(places, baseline, progress)
        found[name] = replace(results, targets=tuple(targets))
    return Overview(found)


@dataclass(frozen=True)
class Collection:
    """Several studies: the overview, its figures, and a report of each by the study's name."""

    overview: Overview
    figures: Sequence[Drawn]
    chapters: Mapping[str, Report]

    def page(self) -> str:
        """The page with all of them."""
        whole = in_page(list(self.chapters.values()))
        chapters = [
            (report, Place(report, name, number, whole=whole))
            for number, (name, report) in enumerate(self.chapters.items(), 1)
        ]
        reports = self.chapters.values()
        labels = list(dict.fromkeys(label for each in reports for label in each.results.labels))
        tables, short = overview_tables(self.overview), self.overview.short
        front = Front(short, tables, self.figures, {label: label for label in labels})
        about = f"{len(chapters)} studies, a chapter each, and an overview before them."
        return rendered(TITLE, about, chapters, labels, front=front)

    @property
    def files(self) -> dict[str, Callable[[], bytes]]:
        """Every file beside the page; those of a study in a folder of its own."""
        made = files_of(overview_tables(self.overview), self.figures)
        for name, report in self.chapters.items():
            folder = study_files(name)
            made |= {f"{folder}{file}": make for file, make in report.files.items()}
        return made

    def write(self, out: Path, progress: Progress | None = None) -> Path:
        """Writes everything below a folder, the page last; returns the page's file."""
        return write_files(out, self.files, self.page, progress)


def draw_studies(
    overview: Overview,
    *,
    examples: bool = True,
    method: str = "",
    progress: Progress | None = None,
) -> Report | Collection:
    """Draws all that can be drawn from one or more studies.

    Args:
        overview: the studies, as they were read.
        examples: whether to draw example cases, for which models are applied again.
        method: row that they compare with the baseline, in the studies that have it.
        progress: told of long work.

    Raises:
        RunError: no study has a row called `method`.
        MissingExtra: the packages that draw are not installed.
    """
    _refuse_unknown(method, overview.studies)
    several = len(overview.studies) > 1
    chapters = {
        name: report_on(
            results,
            examples=examples,
            method=method if results.row(method) else "",
            progress=progress,
            mark=study_mark(number if several else 0),
        )
        for number, (name, results) in enumerate(overview.studies.items(), 1)
    }
    if not several:
        return next(iter(chapters.values()))
    figures = (critical_difference_figure(overview), risks_figure(overview))
    return Collection(overview, [drawn(figure) for figure in figures if figure], chapters)


def _refuse_unknown(method: str, studies: Mapping[str, Results]) -> None:
    names = list(dict.fromkeys(row.name for each in studies.values() for row in each.rows))
    if method and method not in names:
        raise RunError(
            f"row {method!r} is not among the runs",
            where="example cases",
            remedy=did_you_mean(method, names),
        )


def printed_studies(overview: Overview) -> list[Table]:
    """The tables that a terminal shows; of several studies the overview's, then each study's."""
    if len(overview.studies) == 1:
        return printed_tables(next(iter(overview.studies.values())))
    made = overview_tables(overview)
    for name, results in overview.studies.items():
        made += [
            replace(table, name=f"{name}/{table.name}", title=f"{name}: {table.title}")
            for table in printed_tables(results)
        ]
    return made
