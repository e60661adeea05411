"""The labelled images of a task, one at a time: its files, and a network's classes on its grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import nn

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.files import Scan
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import dices, predict
from autofedavg.tasks.imaging.preparation import Case, Classes, load
from autofedavg.tasks.imaging.prepared import Store


class Segmented(NamedTuple):
    """What a network found in a case.

    Attributes:
        classes: of every voxel of the file's own grid, uint8; 0 is background.
        dice: the mean over the classes, as in the scores of a run.
    """

    classes: np.ndarray
    dice: float


@dataclass(frozen=True)
class Collection:
    """A task's cases as files.

    Attributes:
        cases: every site's, of those whose files are known.
        classes: the class list.
        how: the pipeline.
        cache: the folder for caches; the user's when empty.
        lacking: how many cases of the task have no files.
    """

    cases: Mapping[str, Sequence[Case]]
    classes: Classes
    how: Pipeline
    cache: str = ""
    lacking: int = 0

    @cached_property
    def _store(self) -> Store:
        return Store(self.how, self.classes, self.cache, memory=0)

    def case(self, site: str, name: str) -> Case:
        """One case.

        Raises:
            DataError: it has no files any more.
        """
        found = next((case for case in self.cases.get(site, ()) if case.case == name), None)
        if found is None:
            raise DataError(
                "its files are not at hand", where=f"{site}, {name}", remedy="put them back"
            )
        return found

    def load(self, case: Case) -> tuple[Scan, np.ndarray]:
        """Image and label as they are in the files.

        Raises:
            DataError: they cannot be read.
        """
        return load(case, self.classes)

    def segment(self, case: Case, network: nn.Module) -> Segmented:
        """What a network finds in a case, prepared now if it has not been.

        Raises:
            DataError: its files cannot be used.
        """
        ready = self._store.prepare(case)
        found = predict(network, ready, self.how, len(self.classes))
        values = dices(found, ready.original(), len(self.classes))
        return Segmented(found.numpy(), math.fsum(values) / len(values))

    def content(self) -> str | None:
        """The digest of all voxels; None if it would take the preparation of most cases.

        Raises:
            DataError: a case that has changed cannot be used.
        """
        every = [case for cases in self.cases.values() for case in cases]
        try:
            ready = sum(self._store.has(case) for case in every)
        except DataError:  # a file is missing
            return None
        return None if self.lacking or 2 * ready < len(every) else self._store.content(self.cases)
