"""The fingerprint of a data list: grids, spacings, intensities and classes of every case.

Settings that a study leaves open are derived from it, and `data inspect` shows it. Each case is
measured once; the result is cached.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from nibabel.orientations import io_orientation
from pydantic import TypeAdapter
from scipy import stats

from autofedavg.core.errors import DataError
from autofedavg.tasks.base import Progress
from autofedavg.tasks.imaging.cache import cache_home, unfinished, writing
from autofedavg.tasks.imaging.files import identity, read_label
from autofedavg.tasks.imaging.intensities import moments, written
from autofedavg.tasks.imaging.preparation import Case, load, of_every_case
from autofedavg.tasks.imaging.readers import Scan
from autofedavg.tasks.lists.listing import Listing

VERSION = 4  # part of every key: raise it whenever measurements of the same file change
LEVELS = tuple(np.linspace(0, 100, 101))


class CaseFacts(NamedTuple):
    """One case, measured. Axes in the order right, anterior, superior where space is known."""

    grid: tuple[int, ...]  # voxels along each axis
    spacing: tuple[float, ...] | None  # mm along each axis; None where it is unknown
    eight_bit: bool  # whether intensities are bytes
    zeros: float  # share of voxels that are exactly 0 (around a head or body)
    # Per channel, the 0th to 100th percentile of the voxels other than 0.
    percentiles: list[list[float]]
    # Per channel, mean and standard deviation of the voxels above its average.
    moments: list[tuple[float, float]]
    # Per channel, the 0th to 100th percentile under the label; empty without label.
    foreground: list[list[float]]
    voxels: dict[int, int]  # label value -> number of voxels

    @property
    def channels(self) -> int:
        return len(self.percentiles)


FACTS = TypeAdapter(CaseFacts)


class Fingerprint(NamedTuple):
    """All cases of a list."""

    sites: dict[str, dict[str, CaseFacts]]  # site -> case -> its facts

    @property
    def cases(self) -> list[CaseFacts]:
        return [facts for _, facts in self.named()]

    def named(self) -> Iterator[tuple[str, CaseFacts]]:
        """("site/case", facts) of every case."""
        for site, cases in self.sites.items():
            yield from ((f"{site}/{case}", facts) for case, facts in cases.items())

    @property
    def axes(self) -> int:
        return len(self.cases[0].grid)

    @property
    def channels(self) -> int:
        return self.cases[0].channels

    def values(self) -> list[int]:
        """The label values that occur, without 0."""
        return sorted({value for case in self.cases for value in case.voxels if value})

    def spacing(self) -> tuple[float, ...] | None:
        """The median spacing; None if that of any case is unknown."""
        known = [case.spacing for case in self.cases]
        if any(spacing is None for spacing in known):
            return None
        return tuple(round(float(v), 4) for v in np.median(np.array(known, dtype=float), axis=0))

    def shift(self, channel: int = 0) -> tuple[list[str], np.ndarray]:
        """The distances between the sites' intensities: (names, K x K).

        The Wasserstein distance between two sites' intensities, in units of the standard
        deviation of all sites together.
        """
        pooled = {
            site: [p for facts in cases.values() for p in facts.percentiles[channel]]
            for site, cases in self.sites.items()
        }
        spread = float(np.std(np.concatenate([np.array(p) for p in pooled.values()]))) or 1.0
        table = np.zeros((len(pooled), len(pooled)))
        for (i, one), (j, two) in combinations(enumerate(pooled.values()), 2):
            table[i, j] = table[j, i] = stats.wasserstein_distance(one, two) / spread
        return list(pooled), table


def fingerprint(listing: Listing, cache: str = "", progress: Progress | None = None) -> Fingerprint:
    """Measures every case of a list; raises a DataError that lists all unusable cases."""
    folder = (Path(cache) if cache else cache_home()) / "fingerprints"
    threads = min(2, os.cpu_count() or 1)
    wanted = {site: [e.as_case() for e in entries] for site, entries in listing.sites().items()}
    work, where = partial(_tried, folder=folder), str(listing.path)
    measured = of_every_case(wanted, work, "measuring cases", threads, progress, where)
    seen = Fingerprint(
        {
            site: {c.case: facts for c, facts in zip(cases, measured[site], strict=True)}
            for site, cases in wanted.items()
        }
    )
    kinds: dict[tuple[int, int], str] = {}
    for name, case in seen.named():
        kinds.setdefault((len(case.grid), case.channels), name)
    if len(kinds) > 1:
        each = "; ".join(f"{axes} axes and {c} channels ({w})" for (axes, c), w in kinds.items())
        raise DataError(
            f"cases differ in axes or channels: {each}",
            where=where,
            remedy="list images of one kind only",
        )
    return seen


def _tried(case: Case, folder: Path) -> CaseFacts | DataError:
    try:
        about = [[str(p.absolute()), identity(p)] for p in (*case.image, case.label)]
        key = hashlib.sha256(json.dumps([VERSION, about]).encode()).hexdigest()[:24]
        path = folder / f"{key}.json"
        with suppress(OSError, ValueError, TypeError, AttributeError):  # missing or damaged
            return FACTS.validate_python(json.loads(path.read_text(encoding="utf-8")))
        facts = _measure(case)
    except DataError as error:
        return error
    making = unfinished(path)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        making.write_text(json.dumps(facts._asdict()), encoding="utf-8")
        making.replace(path)
    return facts


def _measure(case: Case) -> CaseFacts:
    values, counts = np.unique(read_label(case.label).values, return_counts=True)
    image, mask = load(case, {"any": tuple(int(value) for value in values if value)})
    order = _order(image)
    percentiles, body, foreground = [], [], []
    for channel in image.values:
        percentiles.append([float(v) for v in np.percentile(written(channel), LEVELS)])
        body.append(moments(channel))
        under = channel[mask > 0]
        foreground.append([float(v) for v in np.percentile(under, LEVELS)] if under.size else [])
    return CaseFacts(
        tuple(image.grid[axis] for axis in order),
        None if image.spacing is None else tuple(image.spacing[axis] for axis in order),
        image.values.dtype == np.uint8,
        float((image.values == 0).mean()),
        percentiles,
        body,
        foreground,
        {int(v): int(n) for v, n in zip(values, counts, strict=True)},
    )


def _order(image: Scan) -> list[int]:
    """The file's axes in the order right, anterior, superior."""
    if image.affine is None:
        return list(range(len(image.grid)))
    return [int(axis) for axis in np.argsort(io_orientation(image.affine)[:, 0])]
