"""What a data list looks like, measured: grids, spacings, intensities, classes, per case and site.

The settings that a study leaves open are worked out from it, and `data inspect` shows it. Measured
once per case and kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from nibabel.orientations import io_orientation
from scipy import stats

from autofedavg.core.errors import DataError
from autofedavg.tasks.base import Progress
from autofedavg.tasks.imaging.cache import cache_home, writing
from autofedavg.tasks.imaging.files import identity, read_label
from autofedavg.tasks.imaging.intensities import moments, written
from autofedavg.tasks.imaging.preparation import Case, load
from autofedavg.tasks.imaging.readers import Scan
from autofedavg.tasks.lists.listing import ListedCase, Listing

VERSION = 4  # part of every key: raise it whenever the same file is measured otherwise
LEVELS = tuple(np.linspace(0, 100, 101))


class CaseFacts(NamedTuple):
    """One case, measured. Axes in the order right, anterior, superior where space is known.

    Attributes:
        grid: voxels along each axis.
        spacing: mm along each axis; None where the file does not say.
        eight_bit: whether intensities are bytes.
        zeros: share of voxels that are exactly 0 (around a head or body).
        percentiles: per channel, the 0th to 100th percentile of the voxels other than 0.
        moments: per channel, mean and standard deviation of what is brighter than its average.
        foreground: per channel, the 0th to 100th percentile under the label; empty without label.
        voxels: label value -> number of voxels.
    """

    grid: tuple[int, ...]
    spacing: tuple[float, ...] | None
    eight_bit: bool
    zeros: float
    percentiles: list[list[float]]
    moments: list[tuple[float, float]]
    foreground: list[list[float]]
    voxels: dict[int, int]

    @property
    def channels(self) -> int:
        return len(self.percentiles)


class Fingerprint(NamedTuple):
    """All cases of a list, by site."""

    sites: dict[str, list[CaseFacts]]

    @property
    def cases(self) -> list[CaseFacts]:
        return [case for cases in self.sites.values() for case in cases]

    @property
    def axes(self) -> int:
        return len(self.cases[0].grid)

    @property
    def channels(self) -> int:
        return self.cases[0].channels

    def values(self) -> list[int]:
        """The label values that occur, but for 0."""
        return sorted({value for case in self.cases for value in case.voxels if value})

    def spacing(self) -> tuple[float, ...] | None:
        """The median spacing, or None where any case's is unknown."""
        known = [case.spacing for case in self.cases]
        if any(spacing is None for spacing in known):
            return None
        return tuple(round(float(v), 4) for v in np.median(np.array(known, dtype=float), axis=0))

    def shift(self, channel: int = 0) -> tuple[list[str], np.ndarray]:
        """How far the sites' intensities lie apart: (names, K x K).

        The Wasserstein distance between two sites' intensities, in units of the spread of all
        sites together. 0: alike. 1: apart by a standard deviation.
        """
        pooled = {s: [p for c in cases for p in c.percentiles[channel]] for s, cases in
                  self.sites.items()}  # fmt: skip
        spread = float(np.std(np.concatenate([np.array(p) for p in pooled.values()]))) or 1.0
        names = list(pooled)
        table = np.zeros((len(names), len(names)))
        for i, one in enumerate(names):
            for j, two in enumerate(names):
                if i < j:
                    distance = stats.wasserstein_distance(pooled[one], pooled[two]) / spread
                    table[i, j] = table[j, i] = distance
        return names, table


def fingerprint(listing: Listing, cache: str = "", progress: Progress | None = None) -> Fingerprint:
    """Measures every case of a list.

    Raises:
        DataError: cases that cannot be used, all listed; or cases of different kinds.
    """
    folder = (Path(cache) if cache else cache_home()) / "fingerprints"
    found: dict[str, list[CaseFacts]] = {site: [] for site in listing.sites()}
    wrong: list[str] = []
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        results = pool.map(lambda entry: _tried(entry, folder), listing.entries)
        for done, (entry, result) in enumerate(zip(listing.entries, results, strict=True), 1):
            if isinstance(result, DataError):
                wrong.append(f"{entry.site}, {entry.case}: {result}")
            else:
                found[entry.site].append(result)
            if progress:
                progress("looking at cases", done, len(listing.entries))
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(listing.entries)} cases cannot be used:\n  "
            + "\n  ".join(wrong),
            where=str(listing.path),
            remedy="mend them, or take them out of the list",
        )
    _refuse_mixture(listing, found)
    return Fingerprint(found)


def _refuse_mixture(listing: Listing, found: Mapping[str, Sequence[CaseFacts]]) -> None:
    kinds: dict[tuple[int, int], str] = {}
    for site, entries in listing.sites().items():
        for entry, case in zip(entries, found[site], strict=True):
            kinds.setdefault((len(case.grid), case.channels), f"{site}/{entry.case}")
    if len(kinds) > 1:
        told = "; ".join(f"{axes} axes and {c} channels ({w})" for (axes, c), w in kinds.items())
        raise DataError(
            f"cases differ in kind: {told}",
            where=str(listing.path),
            remedy="list images of one kind only",
        )


def _tried(entry: ListedCase, folder: Path) -> CaseFacts | DataError:
    try:
        about = [[str(p.absolute()), identity(p)] for p in (*entry.image, entry.label)]
        key = hashlib.sha256(json.dumps([VERSION, about]).encode()).hexdigest()[:24]
        path = folder / f"{key}.json"
        with suppress(OSError, ValueError, TypeError, AttributeError):  # not there, or spoiled
            return _restored(json.loads(path.read_text(encoding="utf-8")))
        facts = _measure(entry)
    except DataError as error:
        return error
    making = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        making.write_text(json.dumps(facts._asdict()), encoding="utf-8")
        making.replace(path)
    return facts


def _restored(known: dict[str, Any]) -> CaseFacts:
    facts = CaseFacts(**known)
    return facts._replace(
        grid=tuple(facts.grid),
        spacing=None if facts.spacing is None else tuple(facts.spacing),
        moments=[(float(mean), float(spread)) for mean, spread in facts.moments],
        voxels={int(value): count for value, count in facts.voxels.items()},
    )


def _measure(entry: ListedCase) -> CaseFacts:
    values, counts = np.unique(read_label(entry.label).values, return_counts=True)
    anything = {"any": tuple(int(value) for value in values if value)}
    image, mask = load(Case(entry.case, "", entry.image, entry.label), anything)
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
    """Which of the file's axes runs to the right, to the front and upwards."""
    if image.affine is None:
        return list(range(len(image.grid)))
    return [int(axis) for axis in np.argsort(io_orientation(image.affine)[:, 0])]
