"""The task on your own data: a list of images and labels with their sites."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.problem import Problem
from autofedavg.core.settings import setting
from autofedavg.tasks.base import Progress
from autofedavg.tasks.imaging.cache import data_home
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.preparation import BACKGROUND, Classes
from autofedavg.tasks.imaging.prepared import refuse_empty_splits
from autofedavg.tasks.imaging.task import CaseFiles, ImageTask, counted
from autofedavg.tasks.lists.defaults import OpenPipeline
from autofedavg.tasks.lists.fingerprint import Fingerprint, fingerprint
from autofedavg.tasks.lists.label_classes import found_classes, refuse_strangers
from autofedavg.tasks.lists.listing import Listing, read_listing
from autofedavg.tasks.lists.missing import missing_files, refuse_absent, refuse_missing
from autofedavg.tasks.lists.splits import Split, split_digest, splits_of

MOST_CLASSES = 255  # labels are bytes


class Datalist(ImageTask):
    """Segmentation of the images in a data list, 2D or 3D, one or several classes."""

    paths: ClassVar[tuple[str, ...]] = ("datalist", "root", "cache")

    name: Literal["datalist"] = "datalist"
    datalist: str = setting("", origin="ours", help="the data list, .csv or .json")
    root: str = setting(
        "",
        origin="ours",
        help="folder its paths begin at, if need be below AUTOFEDAVG_DATA; the list's when empty",
    )
    allow_outside: bool = setting(
        False, origin="ours", help="whether paths may lead out of that folder"
    )
    fold: int = setting(
        -1,
        origin="ours",
        help="fold that is tested, the next one validates; -1 when the list is not in folds",
        ge=-1,
    )
    shares: tuple[float, float, float] = setting(
        (0.6, 0.2, 0.2), origin="ours", help="of train, validation and test where splits are drawn"
    )
    split_seed: int = setting(0, origin="ours", help="seed of drawn splits", ge=0)
    holdout: float = setting(
        0.0, origin="ours: decision 3", help="share of training patients set aside", ge=0, lt=1
    )
    classes: dict[str, tuple[int, ...]] = setting(
        {},
        origin="derived from the data: the list's, or every value the labels hold",
        help="class name = values in the label files that mean it",
    )
    image_channels: int = setting(
        0, origin="derived from the data", help="channels of an image; 0 to count them", ge=0
    )
    pipeline: OpenPipeline = setting(
        OpenPipeline(), origin="ours", help="from images to batches and scores"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if min(self.shares) <= 0:
            raise ValueError("shares must be above 0")
        values = [value for found in self.classes.values() for value in found]
        if len(values) != len(set(values)) or any(value < 1 for value in values):
            raise ValueError("classes must name every value once, from 1 (0 is background)")
        if BACKGROUND in self.classes:
            raise ValueError("a class needs a name")
        if not all(self.classes.values()) or len(self.classes) > MOST_CLASSES:
            raise ValueError(f"1 to {MOST_CLASSES} classes, each with a value, can be learned")
        return self

    @property
    def _settled(self) -> bool:
        return bool(self.pipeline.settled() and self.classes and self.image_channels)

    def resolved(self, progress: Progress | None = None) -> Self:
        if self._settled:
            return self
        seen = self.fingerprint(progress)
        found: dict[str, Any] = {"pipeline": self.pipeline.settle(self._training(seen))}
        if not self.image_channels:
            found["image_channels"] = seen.channels
        if not self.classes:
            named = dict(self.listing.classes)
            found["classes"] = named or found_classes(self.listing, seen)
        copy = self.model_copy(update=found)
        copy.__pydantic_fields_set__.difference_update(set(found) - {"pipeline"})
        copy.pipeline.pipeline()
        return copy

    def _training(self, seen: Fingerprint) -> Fingerprint:
        """The cases that settings are derived from: training cases, or all if there are folds."""
        try:
            splits = self.splits if self.fold < 0 else None
        except DataError:  # no run is possible, but `data inspect` goes on
            splits = None
        if splits is None:
            return seen
        used = ("train", "holdout")
        return Fingerprint(
            {
                site: {case: facts for case, facts in cases.items() if splits[site][case] in used}
                for site, cases in seen.sites.items()
            }
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        for name in ("listing", "splits"):  # they depend on the settings
            copy.__dict__.pop(name, None)
        return copy

    @cached_property
    def listing(self) -> Listing:
        """The list itself."""
        if not self.datalist:
            raise ConfigError(
                "no data list is set",
                where="task.datalist",
                remedy="set it to a .csv or .json file",
            )
        path = Path(self.datalist)
        return read_listing(path, self._root(path), allow_outside=self.allow_outside)

    def _root(self, path: Path) -> Path:
        if not self.root:
            return path.absolute().parent
        root = Path(self.root)
        known = data_home(root.name)
        return known.absolute() if not root.is_dir() and known.is_dir() else root.absolute()

    def fingerprint(self, progress: Progress | None = None) -> Fingerprint:
        refuse_absent(self.listing, self.root)
        return fingerprint(self.listing, self.cache, progress)

    @cached_property
    def splits(self) -> Split:
        """Site -> case -> split."""
        return splits_of(self.listing, self.fold, self.shares, self.split_seed, self.holdout)

    def check(self) -> None:
        if not self._settled:
            self._check_labels()
        splits = {site: [*cases.values()] for site, cases in self.splits.items()}
        refuse_empty_splits(splits, "splits" if self.fold < 0 else f"fold {self.fold}")

    def _check_labels(self, progress: Progress | None = None) -> None:
        """Refuses labels and images that cannot be used together; every file is read once."""
        seen, classes = self.fingerprint(progress), self.resolved(progress).classes
        refuse_strangers(self.listing, seen, classes, self.image_channels)

    def problem(self, progress: Progress | None = None) -> Problem:
        refuse_absent(self.listing, self.root)
        return super().problem(progress)

    def site_names(self) -> list[str]:
        return [*self.listing.sites()]

    def form(self) -> tuple[Pipeline, int, Classes]:
        return self.pipeline.pipeline(), self.image_channels, self.classes

    def case_files(self, progress: Progress | None = None) -> CaseFiles:
        return {
            site: [entry.as_case(self.splits[site][entry.case]) for entry in entries]
            for site, entries in self.listing.sites().items()
        }

    def memory(self) -> int:
        spacing = self.resolved().pipeline.spacing
        whole = 0.0
        for case in self.fingerprint().cases:
            voxels = math.prod(case.grid)
            times = 1.0
            if case.spacing and isinstance(spacing, tuple):
                times = math.prod(case.spacing) / math.prod(spacing)
            # float16 image, uint8 label, and the label on its own grid.
            whole += voxels * times * (2 * case.channels + 1) + voxels
        return min(int(whole), int(self.hold * 2**30))

    def where(self) -> str:
        count = sum(len(entry.image) + 1 for entry in self.listing.entries)
        lacking = len(missing_files(self.listing.entries))
        return self._in(
            f"{lacking} of {count} files are missing" if lacking else "all files present"
        )

    def _in(self, state: str) -> str:
        """Where the files are, in what state, and how many cases are no part of it."""
        left_out = self.listing.unlabelled
        cases = f"{left_out} case{' is' if left_out == 1 else 's are'} left out without a label"
        return f"in {self.listing.root}: {state}" + (f", {cases}" if left_out else "")

    def about(self) -> str:
        cases = {site: len(entries) for site, entries in self.listing.sites().items()}
        counts = ", ".join(f"{site} {count}" for site, count in cases.items())
        return f"Data list {self.listing.path}: {sum(cases.values())} cases ({counts})"

    def verify(self, progress: Progress | None = None) -> list[str]:
        refuse_missing(self.listing, self.root)
        self._check_labels(progress)
        return [self._in("all files present and readable")] + [
            f"{site}: " + ", ".join(f"{n} {split}" for split, n in parts.items() if n)
            for site, parts in counted(self.splits).items()
        ]

    def outline(self) -> dict[str, Any]:
        folds = {
            site: {entry.case: str(entry.fold) for entry in entries}
            for site, entries in self.listing.sites().items()
        }
        return {
            "data": self.named(f"data list {self.listing.path.name}"),
            "cases": counted(self.splits),
            "split_sha256": split_digest(self.splits),
            "folds_sha256": split_digest(folds) if self.fold >= 0 else "",
        }
