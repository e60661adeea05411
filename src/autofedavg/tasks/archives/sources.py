"""Public data sets: origin and terms, files on disk, committed splits, a check of their labels.

The paper gives the sizes of its splits and not their cases. Ours, in the files of `cases/`, were
drawn once by a rule that the tests repeat (tests/split_rule.py), so nobody chose the cases.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import os
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autofedavg.tasks.imaging.casefolder import PreparedCase
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.preparation import Classes

log = logging.getLogger(__name__)
SOFT = -50.0  # Hounsfield units: above fat
ENOUGH = 0.8  # of a label's voxels; a misplaced label also covers fat and air


class CommittedCase(NamedTuple):
    """One case of a public data set."""

    site: str  # the client it belongs to
    case: str  # its id, unique in the task
    split: str  # train, validation or test
    withdrawn: str = ""  # the reason why it is left out; empty for every case that is used


@cache
def read_cases(task: str) -> tuple[CommittedCase, ...]:
    """The committed cases of a task, in the order of its file."""
    lines = _text(f"{task}.csv").splitlines()
    return tuple(CommittedCase(**row) for row in csv.DictReader(lines))


@cache
def read_sources(task: str) -> tuple[DataSource, ...]:
    """The public data sets of a task."""
    tables = tomllib.loads(_text(f"{task}.toml"))["source"]
    for table in tables:
        table["classes"] = {name: tuple(values) for name, values in table["classes"].items()}
    return tuple(DataSource(**table) for table in tables)


def _text(name: str) -> str:
    return (files("autofedavg.tasks.archives") / "cases" / name).read_text(encoding="utf-8")


def in_drawn_order(task: str, cases: Iterable[str]) -> list[str]:
    """Cases in a reproducible random order: by the SHA-256 of "autofedavg <task> <case>"."""
    digest = {c: hashlib.sha256(f"autofedavg {task} {c}".encode()).hexdigest() for c in cases}
    return sorted(digest, key=digest.__getitem__)


@dataclass
class FoundFiles:
    """The files found of one case; more than one image or label is an error."""

    images: list[Path] = field(default_factory=list)
    labels: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class DataSource:
    """A public data set as it is downloaded."""

    sites: Sequence[str]  # the clients that its cases belong to
    title: str  # its name
    get: str  # where to download it, and its size
    licence: str  # its terms of use
    cite: Sequence[str]  # the publications to cite
    folder: str  # its folder below the task's root; empty for the root itself
    case: str  # a case's id, with {} for its number
    image: str  # the end of an image's path, with {}; of a folder where `series` is true
    label: str  # the end of a label's path, with {}
    number: str  # the form of a number, as a regular expression
    classes: Classes  # the meaning of the label's values
    series: bool = False  # whether images are folders of DICOM files
    # Whether labels follow their image's rows and slices; their affine is ignored.
    by_rows: bool = False
    # Other ids for a case -> the id of the split file.
    aliases: Mapping[str, str] = field(default_factory=dict)

    def find(self, root: Path) -> dict[str, FoundFiles]:
        """Every case with an image or a label in any folder below the root."""
        top = root / self.folder
        found: dict[str, FoundFiles] = {}
        for path in _below(top, self._ends(self.image) if self.series else None):
            tail = path.relative_to(top).as_posix()
            for ends, role in ((self.image, "images"), (self.label, "labels")):
                match = self._ends(ends).fullmatch(tail)
                if match:
                    case = self.case.format(match[1])
                    pair = found.setdefault(self.aliases.get(case, case), FoundFiles())
                    getattr(pair, role).append(path)
        return found

    def lacking(self, case: str, pair: FoundFiles) -> list[str]:
        """The reasons why a case cannot be used, judging by the names of its files."""
        wrong = []
        for role, ends, paths in (
            ("image", self.image, pair.images),
            ("label", self.label, pair.labels),
        ):
            if not paths:
                wrong.append(f"no {role} {self.named(ends, case)}")
            elif len(paths) > 1:
                wrong.append(f"{len(paths)} {role}s: " + ", ".join(map(str, sorted(paths))))
        return wrong

    def named(self, ends: str, case: str) -> str:
        """The path of a case's file in its data set."""
        before, _, after = self.case.partition("{}")
        return ends.format(case.removeprefix(before).removesuffix(after))

    def _ends(self, template: str) -> re.Pattern[str]:
        number = re.escape(template).replace(r"\{\}", f"({self.number})")
        return re.compile("(?:.*/)?" + number.replace(r"\.nii\.gz", r"\.nii(?:\.gz)?"))


def _below(top: Path, whole: re.Pattern[str] | None = None) -> Iterator[Path]:
    """The files below a folder; a folder that matches `whole` counts as one, unless empty.

    Follows links to folders, visits each folder once, and skips hidden names.
    """
    seen: set[str] = set()
    for place, folders, names in os.walk(top, followlinks=True):
        here = Path(place)
        real = os.path.realpath(place)
        folders[:] = sorted(name for name in folders if name[:1] != "." and real not in seen)
        if real in seen:
            continue
        seen.add(real)
        for name in list(folders) if whole else ():
            if whole and whole.fullmatch((here / name).relative_to(top).as_posix()):
                folders.remove(name)
                if next(_below(here / name), None):
                    yield here / name
        yield from (here / name for name in sorted(names) if name[:1] != ".")


def soft_tissue(case: PreparedCase, how: Pipeline) -> float:
    """The share of a case's labelled voxels that are neither fat or air nor above the window."""
    found = np.concatenate(case.centres())
    if not len(found):
        return 1.0
    voxels = np.stack(np.unravel_index(found, case.size))
    box = tuple(slice(int(axis.min()), int(axis.max()) + 1) for axis in voxels)
    image, label = case.crop(box)
    low, high = how.window
    values = image[0][label[0] > 0]
    soft = (values > (SOFT - low) / (high - low)) & (values < 1)
    return float(soft.float().mean())


def warn_of_misplaced(site: str, cases: Sequence[PreparedCase], how: Pipeline) -> None:
    """Warns if the labels of a site do not cover soft tissue; needs a window in HU."""
    if how.normalise != "window" or how.window[0] >= SOFT:
        return
    share = statistics.median(soft_tissue(case, how) for case in cases)
    if share < ENOUGH:
        log.warning(
            "%s: only %.0f %% of the labelled voxels are soft tissue in most cases; labels may be "
            "flipped or shifted against their images; compare some in a viewer",
            site,
            100 * share,
        )
