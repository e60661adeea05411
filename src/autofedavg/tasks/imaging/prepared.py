"""Prepared cases on disk: written once, shared by all runs, read whole or crop by crop.

Every case is a folder that appears by one rename. So two processes may prepare at once, and a
killed process leaves only complete cases. Cases are held in memory up to a limit; the others are
memory-mapped for each read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from autofedavg.core.errors import DataError
from autofedavg.tasks.base import Progress
from autofedavg.tasks.imaging.cache import cache_home, new_folder, writing
from autofedavg.tasks.imaging.casefolder import PreparedCase, is_whole, write_case
from autofedavg.tasks.imaging.files import identity
from autofedavg.tasks.imaging.monai_import import importing_monai
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.preparation import (
    BACKGROUND,
    BINARY,
    Case,
    Classes,
    arrays,
    of_every_case,
)

with importing_monai():
    import monai

VERSION = 5  # part of every key: raise it whenever the same files and settings give other arrays
CasesBySplit = dict[str, list[PreparedCase]]
SPLITS = ("train", "validation", "test", "holdout")
ROOMY = 4 * 2**30  # a memory limit with room for two cases in preparation
ABANDONED = 3600.0  # seconds after which an incomplete folder is nobody's work any more


class Store:
    """The cache of prepared cases of one pipeline and class list.

    `cache` is the folder for caches, the user's when empty; `memory` is the GiB of cases to hold.
    """

    def __init__(
        self, how: Pipeline, classes: Classes = BINARY, cache: str = "", memory: float = 8.0
    ) -> None:
        self._how, self._classes = how, classes
        self._folder = (Path(cache) if cache else cache_home()) / "prepared"
        self._limit = memory * 2**30

    def has(self, case: Case) -> bool:
        """Whether a case has been prepared; its files must exist."""
        return is_whole(self._place(case))

    def prepare(self, case: Case) -> PreparedCase:
        """The prepared case, from the cache if it is there; raises DataError if it is unusable."""
        result = self._tried(case)
        if isinstance(result, DataError):
            raise result
        return result

    def sites(
        self, wanted: Mapping[str, Sequence[Case]], progress: Progress | None = None
    ) -> dict[str, CasesBySplit]:
        """Every site's prepared cases by split, held in memory up to the limit.

        Raises:
            DataError: a site lacks a split, or cases cannot be used; the error lists all.
        """
        refuse_empty_splits({site: [c.split for c in cases] for site, cases in wanted.items()})
        self._sweep()
        at_once = 2 if self._limit >= ROOMY else 1  # each needs several times its file
        made = of_every_case(wanted, self._tried, "preparing cases", at_once, progress)
        ready: dict[str, CasesBySplit] = {site: {split: [] for split in SPLITS} for site in wanted}
        for site, cases in wanted.items():
            for case, result in zip(cases, made[site], strict=True):
                ready[site][case.split].append(result)
        refuse_copies(ready)
        self._hold(ready)
        return ready

    def content(self, wanted: Mapping[str, Sequence[Case]]) -> str:
        """A digest of all voxels and their affines."""
        total = hashlib.sha256()
        for site, cases in wanted.items():
            for case in cases:
                facts = self.prepare(case).facts
                seen = [facts[key] for key in ("image_sha256", "label_sha256", "original_affine")]
                total.update(json.dumps([site, case.case, *seen]).encode())
        return total.hexdigest()

    def _tried(self, case: Case) -> PreparedCase | DataError:
        """The case, or the error in its files; raises if the cache cannot be written."""
        try:
            place = self._place(case)
            made = None if is_whole(place) else arrays(case, self._how, self._classes)
        except DataError as error:
            return error
        if made is not None:
            with writing(self._folder), new_folder(place, is_whole) as making:
                write_case(making, made, len(self._classes))
        return PreparedCase(case.case, place)

    def _hold(self, ready: Mapping[str, CasesBySplit]) -> None:
        """Holds training cases first: they are read most often."""
        left = self._limit
        for split in SPLITS:
            for parts in ready.values():
                for case in parts[split]:
                    if case.nbytes <= left:
                        left -= case.nbytes
                        case.hold()

    def _place(self, case: Case) -> Path:
        """The folder of a case; its name is a digest of all inputs of the preparation."""
        shaping = {
            key: str(value)
            for key, value in case._asdict().items()
            if key not in ("case", "split", "patient", "image", "label")
        }
        about = [
            VERSION,
            monai.__version__,
            self._how.chain(),
            self._how.axes,
            [[name == BACKGROUND, *values] for name, values in self._classes.items()],  # in order
            [[str(path.absolute()), identity(path)] for path in (*case.image, case.label)],
            shaping,
        ]
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()
        return self._folder / key[:2] / key[2:26]

    def _sweep(self) -> None:
        """Removes incomplete folders of killed processes, on any machine."""
        for left in self._folder.glob("*/.*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > ABANDONED:
                    shutil.rmtree(left)


def refuse_empty_splits(splits: Mapping[str, Sequence[str]], where: str = "splits") -> None:
    """Raises DataError unless every site has cases to train, to validate and to test."""
    lacking = [
        f"{site} has no {split} case"
        for site, found in splits.items()
        for split in SPLITS[:3]
        if split not in found
    ]
    if lacking:
        raise DataError(
            "; ".join(lacking),
            where=where,
            remedy="give every site at least one case of each split, or leave the site out",
        )


def refuse_copies(ready: Mapping[str, CasesBySplit]) -> None:
    """Raises DataError for copies of an image in two splits or sites: test data would leak."""
    seen: dict[str, tuple[str, str, str]] = {}
    twice = []
    for site, parts in ready.items():
        for split, cases in parts.items():
            for case in cases:
                here = (site, split, case.case)
                before = seen.setdefault(case.facts["image_sha256"], here)
                if before[:2] != here[:2]:
                    twice.append(f"{'/'.join(before)} and {'/'.join(here)}")
    if twice:
        raise DataError(
            "the same image is in two splits or at two sites, so test data would leak:\n  "
            + "\n  ".join(twice),
            remedy="keep one of each pair",
        )
