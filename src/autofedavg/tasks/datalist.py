"""Your own data: a list of images and labels with their sites, in one of the usual formats."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator
from torch import nn

from autofedavg.client import LocalData, Problem
from autofedavg.errors import DataError
from autofedavg.settings import setting
from autofedavg.task import Progress, Task
from autofedavg.tasks.defaults import OpenPipeline
from autofedavg.tasks.fingerprint import Fingerprint, fingerprint
from autofedavg.tasks.listing import Listing, read_listing
from autofedavg.tasks.places import data_home
from autofedavg.tasks.preparation import Case
from autofedavg.tasks.prepared import SPLITS, Store
from autofedavg.tasks.segmentation import SegmentationSite, loss, network
from autofedavg.tasks.splits import Split, split_digest, splits_of


class Datalist(Task):
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
    hold: float = setting(
        8.0,
        origin="ours",
        help="GiB of prepared cases held in memory; the rest is read from disk as it is needed",
        ge=0,
    )
    cache: str = setting(
        "", origin="ours", help="folder for prepared cases; the user's cache folder when empty"
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
        return self

    def resolved(self, progress: Progress | None = None) -> Self:
        """A copy with every setting that was left to the data worked out."""
        if self.pipeline.settled() and self.classes and self.image_channels:
            return self
        seen = self.fingerprint(progress)
        found: dict[str, Any] = {"pipeline": self.pipeline.settle(seen)}
        if not self.image_channels:
            found["image_channels"] = seen.channels
        if not self.classes:
            named = dict(self.listing.classes)
            found["classes"] = named or {str(value): (value,) for value in seen.values()}
            if not found["classes"]:
                raise DataError(
                    "every label is empty",
                    where=str(self.listing.path),
                    remedy="look at the label files",
                )
        copy = self.model_copy(update=found)
        copy.__pydantic_fields_set__.difference_update(set(found) - {"pipeline"})
        copy.pipeline.pipeline()
        return copy

    @cached_property
    def listing(self) -> Listing:
        """The list itself."""
        if not self.datalist:
            raise DataError(
                "no data list is named",
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
        """The data, measured."""
        return fingerprint(self.listing, self.cache, progress)

    @cached_property
    def splits(self) -> Split:
        """Site -> case -> split."""
        return splits_of(self.listing, self.fold, self.shares, self.split_seed, self.holdout)

    def site_names(self) -> list[str]:
        return [*self.listing.sites()]

    def cases(self) -> dict[str, list[Case]]:
        """Every site's cases with their files."""
        return {
            site: [
                Case(e.case, self.splits[site][e.case], e.image, e.label, e.patient)
                for e in entries
            ]
            for site, entries in self.listing.sites().items()
        }

    def problem(self, progress: Progress | None = None) -> Problem:
        task = self.resolved(progress)
        how = task.pipeline.pipeline()
        prepared = task._store().sites(task.cases(), progress)
        names = [*task.classes]
        sites: dict[str, LocalData] = {
            site: SegmentationSite(site, cases, how, names) for site, cases in prepared.items()
        }
        return Problem(task.network, loss(how), sites)

    def network(self) -> nn.Module:
        task = self.resolved()
        return network(task.pipeline.pipeline(), task.image_channels, len(task.classes))

    def memory(self) -> int:
        cases = self.fingerprint().cases
        whole = sum(int(np.prod(case.grid)) * (2 * case.channels + 2) for case in cases)
        return min(whole, int(self.hold * 2**30))

    def where(self) -> str:
        wanted = [p for e in self.listing.entries for p in (*e.image, e.label)]
        lacking = sum(not path.exists() for path in wanted)
        state = f"{lacking} of {len(wanted)} files are missing" if lacking else "all files there"
        return f"in {self.listing.root}: {state}"

    def describe(self) -> dict[str, Any]:
        counted = {
            site: {s: list(cases.values()).count(s) for s in SPLITS}
            for site, cases in self.splits.items()
        }
        content = hashlib.sha256()
        task = self.resolved()
        for site, cases in task.cases().items():
            for case in cases:
                facts = task._store().prepare(case).facts
                content.update(f"{site} {case.case} {facts['image_sha256']}".encode())
                content.update(facts["label_sha256"].encode())
        return {
            "data": f"data list {self.listing.path.name}",
            "cases": counted,
            "split_sha256": split_digest(self.splits),
            "content_sha256": content.hexdigest(),
        }

    def _store(self) -> Store:
        return Store(self.pipeline.pipeline(), self.classes, self.cache, self.hold)
