"""Inspection of a data list before training: differences between sites, and oddities."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.errors import DataError
from autofedavg.core.settings import origins
from autofedavg.tasks.base import Progress
from autofedavg.tasks.inspection import text as words
from autofedavg.tasks.inspection.comparison import (
    HIGH,
    LOW,
    BeforeAfter,
    CaseLine,
    Histogram,
    Shift,
    SiteFacts,
    differences,
    histogram,
    normalised,
    site_facts,
)
from autofedavg.tasks.inspection.html_page import Example, choose, example, page
from autofedavg.tasks.inspection.oddities import oddities
from autofedavg.tasks.lists.fingerprint import CaseFacts
from autofedavg.tasks.lists.listing import ListedCase
from autofedavg.tasks.lists.splits import Split
from autofedavg.tasks.lists.task import Datalist

BINS = 48


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection."""

    task: Datalist  # the task, with all settings resolved
    cases: dict[str, list[CaseLine]]  # every site's cases with their measured facts
    sites: dict[str, SiteFacts]  # the summary of every site
    histograms: list[BeforeAfter[Histogram]]  # per channel
    shifts: list[Shift]  # per channel, the distances between sites
    differences: list[str]  # sentences on the differences between sites
    oddities: list[str]  # sentences on what is worth a look
    # (path, value, origin, help) of the settings derived from the data.
    settings: list[tuple[str, Any, str, str]]

    @property
    def name(self) -> str:
        """The name of the list."""
        return self.task.listing.path.name

    @property
    def unlabelled(self) -> int:
        return self.task.listing.unlabelled

    @property
    def classes(self) -> list[str]:
        return [*self.task.classes]

    @property
    def normalise(self) -> str:
        return self.task.pipeline.normalise

    @property
    def flat(self) -> bool:
        """Whether the images have two axes."""
        return len(next(iter(self.sites.values())).grid) == 2

    def text(self, width: int = 100) -> str:
        """Everything but the pictures, for a terminal."""
        return words.text(self, width)

    def as_json(self) -> dict[str, Any]:
        """Everything but the pictures, as plain values."""
        return {
            "list": self.name,
            "unlabelled": self.unlabelled,
            "normalise": self.normalise,
            "percentile_levels": [LOW, 50.0, HIGH],
            "sites": {site: _plain(facts) for site, facts in self.sites.items()},
            "site_order": [*self.sites],
            "histograms": _plain(self.histograms),
            "shifts": _plain(self.shifts),
            "shift_means": words.SHIFT_MEANS,
            "differences": self.differences,
            "oddities": self.oddities,
            "settings": [
                {"path": path, "value": _plain(value), "origin": origin, "help": help}
                for path, value, origin, help in self.settings
            ],
            "cases": self._case_rows(),
        }

    def examples(self) -> list[Example]:
        """Pictures of up to three cases of every site; raises DataError if files have changed."""
        found = []
        for lines in self.cases.values():
            for line, why in choose(lines):
                values = [*self.task.classes.values(), line.strange]
                found.append(example(line, why, {str(k): v for k, v in enumerate(values)}))
        return found

    def write(self, folder: Path) -> list[Path]:
        """Writes inspection.html, inspection.json, sites.csv and cases.csv."""
        html = page(self, self.examples())
        values = json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"
        site_rows = [words.site_values(site, facts) for site, facts in self.sites.items()]
        contents = {
            folder / "inspection.html": html,
            folder / "inspection.json": values,
            folder / "sites.csv": words.csv_table(site_rows),
            folder / "cases.csv": words.csv_table(self._case_rows()),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, content in contents.items():
                path.write_text(content, encoding="utf-8", newline="")
        except OSError as error:
            raise DataError(
                f"the inspection cannot be written: {error.strerror or error}",
                where=str(folder),
                remedy="name a folder that can be written",
            ) from error
        return [*contents]

    def _case_rows(self) -> list[dict[str, Any]]:
        return [words.case_values(line) for lines in self.cases.values() for line in lines]


def inspect(task: Datalist, progress: Progress | None = None) -> Inspection:
    """Inspects the data of a task; raises a DataError that lists every problem."""
    task = _first_fold(task)
    seen = task.fingerprint(progress)
    settled = task.resolved(progress)
    how = settled.pipeline.pipeline()
    splits, wrong = _splits(settled)
    cases = {
        site: [
            _line(entry, seen.sites[site][entry.case], splits[site][entry.case], settled)
            for entry in entries
        ]
        for site, entries in settled.listing.sites().items()
    }
    sites = {site: site_facts(lines, settled.classes) for site, lines in cases.items()}
    after = normalised(seen, how)
    channels = range(seen.channels)
    apart = [
        BeforeAfter(*(known.shift(channel)[1].tolist() for known in (seen, after)))
        for channel in channels
    ]
    return Inspection(
        settled,
        cases,
        sites,
        [
            BeforeAfter(*(histogram(known, channel, BINS) for known in (seen, after)))
            for channel in channels
        ],
        apart,
        differences(sites, apart, how.normalise),
        wrong + oddities(cases, sites),
        _worked_out(settled),
    )


def _first_fold(task: Datalist) -> Datalist:
    """Shows a list in folds with the splits of its first fold; none are drawn."""
    folds = {entry.fold for entry in task.listing.entries}
    crossed = task.fold < 0 and None not in folds and len(folds) > 2
    return task.model_copy(update={"fold": 0}) if crossed else task


def _worked_out(task: Datalist) -> list[tuple[str, Any, str, str]]:
    return [
        known
        for known in origins(task, "task.")
        if known[2].startswith("derived from the data")
        and (known[0] != "task.pipeline.window" or task.pipeline.normalise == "window")
    ]


def _splits(task: Datalist) -> tuple[Split, list[str]]:
    """The splits; if the list cannot be split, empty ones and the reason."""
    try:
        return task.splits, []
    except DataError as error:
        none = {s: {e.case: "" for e in es} for s, es in task.listing.sites().items()}
        return none, [f"no splits, so a study will refuse this list: {error}"]


def _line(entry: ListedCase, facts: CaseFacts, split: str, task: Datalist) -> CaseLine:
    counted = {
        name: sum(facts.voxels.get(value, 0) for value in values)
        for name, values in task.classes.items()
    }
    known = {0, *(value for values in task.classes.values() for value in values)}
    strange = tuple(value for value in facts.voxels if value not in known)
    return CaseLine(entry, split, facts, counted, strange)


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {key: _plain(inner) for key, inner in value._asdict().items()}
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
