"""What all segmentation tasks share: sites, network, predictions, and their cases as files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import nn

from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.problem import LocalData, Problem
from autofedavg.core.settings import setting
from autofedavg.tasks.base import Progress, Task
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import dices, predict
from autofedavg.tasks.imaging.preparation import Case, Classes, load
from autofedavg.tasks.imaging.prepared import SPLITS, CasesBySplit, Store
from autofedavg.tasks.imaging.readers import Scan
from autofedavg.tasks.imaging.recipe import recipe
from autofedavg.tasks.imaging.segmentation import SegmentationSite, loss, network
from autofedavg.tasks.imaging.segmenter import ImageSegmenter

CaseFiles = dict[str, list[Case]]  # by site


class CaseSegmentation(NamedTuple):
    """A network's prediction for a case."""

    classes: np.ndarray  # of every voxel of the file's own grid, uint8; 0 is background
    dice: float  # the mean over the classes, as in the scores of a run


@dataclass(frozen=True)
class Collection:
    """A task's labelled images, opened one at a time."""

    cases: Mapping[str, Sequence[Case]]  # by site, those whose files are known
    classes: Classes  # the class list
    how: Pipeline  # the pipeline
    cache: str = ""  # the folder for caches; the user's when empty
    lacking: int = 0  # the number of cases without files

    @cached_property
    def _store(self) -> Store:
        return Store(self.how, self.classes, self.cache, memory=0)

    def case(self, site: str, name: str) -> Case:
        """One case; raises DataError if its files are missing."""
        found = next((case for case in self.cases.get(site, ()) if case.case == name), None)
        if found is None:
            raise DataError(
                "the files of this case are missing", where=f"{site}, {name}", remedy="restore them"
            )
        return found

    def load(self, case: Case) -> tuple[Scan, np.ndarray]:
        """Image and label as they are in the files; raises DataError if they cannot be read."""
        return load(case, self.classes)

    def segment(self, case: Case, network: nn.Module) -> CaseSegmentation:
        """Applies a network to a case; raises DataError if its files cannot be used."""
        ready = self._store.prepare(case)
        found = predict(network, ready, self.how, len(self.classes))
        values = dices(found, ready.original(), len(self.classes))
        return CaseSegmentation(found.numpy(), math.fsum(values) / len(values))

    def content(self) -> str | None:
        """The digest of all voxels; None if most cases would first have to be prepared."""
        every = [case for cases in self.cases.values() for case in cases]
        try:
            ready = sum(self._store.has(case) for case in every)
        except DataError:  # a file is missing
            return None
        return None if self.lacking or 2 * ready < len(every) else self._store.content(self.cases)


class SegmentationTask(Task):
    """A task on labelled images; subclasses implement `form`, `case_files` and `outline`."""

    mirrored: tuple[str, ...] = setting(
        (),
        origin="ours: decision 39",
        help="sites with labels mirrored along the first axis, to study: bad sites",
    )
    mirrored_in: tuple[Literal["train", "holdout", "validation"], ...] = setting(
        ("train",),
        origin="ours: decision 39",
        help="splits of these sites whose labels are mirrored; those of test cases never are",
    )

    def form(self) -> tuple[Pipeline, int, Classes]:
        """The pipeline, the channels of an image, and the classes; nothing is left open."""
        raise NotImplementedError

    def case_files(self, progress: Progress | None = None) -> CaseFiles:
        """Every site's cases with their files; raises a DataError that lists missing files."""
        raise NotImplementedError

    def outline(self) -> dict[str, Any]:
        """The part of `describe` that is known without reading the images."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return self.outline()

    def problem(self, progress: Progress | None = None) -> Problem:
        task = self.resolved(progress)
        how, channels, classes = task.form()
        files = task.case_files(progress)
        prepared = task.store().sites(files, progress)
        of = {site: {c.case: c.patient for c in listed} for site, listed in files.items()}
        _refuse_other_channels(prepared, channels)
        names, share, bad = [*classes], 1 / len(prepared), task.mirrors(prepared)
        sites: dict[str, LocalData] = {
            site: SegmentationSite(site, cases, how, names, share, bad[site], of[site])
            for site, cases in prepared.items()
        }
        return Problem(task.network, loss(how), sites, steady=True)

    def network(self) -> nn.Module:
        how, channels, classes = self.resolved().form()
        return network(how, channels, len(classes))

    def segmenter(self) -> ImageSegmenter:
        how, channels, classes = self.resolved().form()
        return ImageSegmenter(how, channels, [*classes])

    def preprocessing(self) -> dict[str, Any]:
        how, channels, classes = self.resolved().form()
        return recipe(how, channels, [*classes])

    def collection(self, progress: Progress | None = None) -> Collection:
        """The cases as files, to be opened one at a time; raises DataError if there are none."""
        task = self.resolved(progress)
        how, _, classes = task.form()
        return Collection(task.case_files(progress), classes, how, getattr(self, "cache", ""))

    def store(self, memory: float = 8.0) -> Store:
        """The cache of prepared cases; holds `memory` GiB of them in memory."""
        how, _, classes = self.form()
        return Store(how, classes, getattr(self, "cache", ""), memory)

    def mirrors(self, sites: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
        """Site -> the splits whose labels are mirrored there."""
        unknown = sorted(set(self.mirrored) - set(sites))
        if unknown and len(sites) > 1:  # a hospital on a real engine knows itself alone
            raise ConfigError(
                f"there is no site {', '.join(unknown)}",
                where="task.mirrored",
                remedy=f"use {', '.join(sites)}",
            )
        return {site: self.mirrored_in if site in self.mirrored else () for site in sites}

    def named(self, data: str) -> str:
        """The name of the data, with the mirrored labels if there are any."""
        if not self.mirrored or not self.mirrored_in:
            return data
        splits = " and ".join("training" if s == "train" else s for s in self.mirrored_in)
        return f"{data}; {splits} labels of {', '.join(self.mirrored)} mirrored"


class ImageTask(SegmentationTask):
    """A segmentation task on files of the user's, prepared into the cache."""

    hold: float = setting(
        8.0,
        origin="ours",
        help="GiB of prepared cases held in memory; the rest is read from disk as it is needed",
        ge=0,
    )
    cache: str = setting(
        "", origin="ours", help="folder for prepared cases; the user's cache folder when empty"
    )

    def store(self, memory: float | None = None) -> Store:
        return super().store(self.hold if memory is None else memory)

    def describe(self) -> dict[str, Any]:
        task = self.resolved()
        return {**self.outline(), "content_sha256": task.store().content(task.case_files())}


def _refuse_other_channels(prepared: Mapping[str, CasesBySplit], channels: int) -> None:
    for site, parts in prepared.items():
        for case in (case for cases in parts.values() for case in cases):
            if case.channels != channels:
                raise DataError(
                    f"it has {case.channels} channels, and the task's images have {channels}",
                    where=f"{site}/{case.case}",
                    remedy="give all images the same channels; a data list has task.image_channels",
                )


def counted(splits: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """Site -> split -> number of cases, from site -> case -> split."""
    return {site: {s: [*c.values()].count(s) for s in SPLITS} for site, c in splits.items()}
