"""A summary of every site, and the shifts between sites."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from autofedavg.tasks.imaging.intensities import LIMITS, NARROWEST
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.lists.fingerprint import LEVELS, CaseFacts, Fingerprint
from autofedavg.tasks.lists.listing import ListedCase

Item = TypeVar("Item")

# The outermost percentiles that do not depend on single voxels.
LOW = float(min(level for level in LEVELS if level >= 0.5))
HIGH = float(max(level for level in LEVELS if level <= 99.5))
FAR = 0.5  # of the common spread: larger shifts of intensities are reported
LARGER_VOXELS, LARGER_LABELS = 1.5, 3.0  # ratios that are reported


class MedianRange(NamedTuple):
    """Median, minimum and maximum of some numbers."""

    median: float
    low: float
    high: float


class CaseLine(NamedTuple):
    """One case with its measured facts."""

    entry: ListedCase
    split: str  # empty where the list cannot be split
    facts: CaseFacts
    voxels: dict[str, int]  # class -> voxels of it
    strange: tuple[int, ...]  # label values that belong to no class

    @property
    def case(self) -> str:
        return self.entry.case

    @property
    def label_voxels(self) -> int:
        return sum(self.voxels.values())

    @property
    def label_ml(self) -> float | None:
        """Millilitres under the label, where the spacing is known."""
        if self.facts.spacing is None:
            return None
        return self.label_voxels * float(np.prod(self.facts.spacing)) / 1000

    def intensities(self, channel: int) -> MedianRange:
        """Median and outer percentiles of a channel."""
        low, middle, high = np.interp((LOW, 50, HIGH), LEVELS, self.facts.percentiles[channel])
        return MedianRange(float(middle), float(low), float(high))


class SiteFacts(NamedTuple):
    """The summary of one site."""

    cases: int
    patients: int
    splits: dict[str, int]  # split -> cases
    grid: tuple[MedianRange, ...]  # voxels along each axis
    # mm along each axis; None where it is unknown for any case.
    spacing: tuple[MedianRange, ...] | None
    intensities: list[MedianRange]  # per channel, the median over cases of each case's percentiles
    shares: dict[str, float]  # class -> share of all voxels
    label_voxels: MedianRange  # of all classes together, over cases
    label_ml: MedianRange | None  # the same in millilitres; None where the spacing is unknown


class Histogram(NamedTuple):
    """Intensities of all sites on one scale: site -> share of voxels in every bin."""

    low: float
    high: float
    shares: dict[str, list[float]]

    @property
    def top(self) -> float:
        """The share at full height; bars of air, far higher than the others, are cut."""
        known = [share for shares in self.shares.values() for share in shares]
        usual = 1.25 * float(np.percentile(known, 90))
        return min(max(known), usual) if usual > 0 else max(known)


class BeforeAfter(NamedTuple, Generic[Item]):
    """Something of one channel's intensities as stored, and as the network sees them."""

    before: Item
    after: Item


Shift = BeforeAfter[list[list[float]]]  # the distances between every two sites


def spread(values: Iterable[float]) -> MedianRange:
    """Median, minimum and maximum of at least one number."""
    known = [float(value) for value in values]
    return MedianRange(statistics.median(known), min(known), max(known))


def site_facts(cases: Sequence[CaseLine], classes: Iterable[str]) -> SiteFacts:
    """The summary of one site."""
    facts = [case.facts for case in cases]
    spacings = [fact.spacing for fact in facts if fact.spacing is not None]
    known = len(spacings) == len(facts)
    everything = sum(int(np.prod(fact.grid)) for fact in facts)
    intensities = []
    for channel in range(facts[0].channels):
        seen = [case.intensities(channel) for case in cases]
        intensities.append(MedianRange(*(float(v) for v in np.median(np.array(seen), axis=0))))
    return SiteFacts(
        len(cases),
        len({case.entry.patient for case in cases}),
        dict(Counter(case.split for case in cases)),
        tuple(spread(sizes) for sizes in zip(*(fact.grid for fact in facts), strict=True)),
        tuple(spread(sizes) for sizes in zip(*spacings, strict=True)) if known else None,
        intensities,
        {name: sum(case.voxels[name] for case in cases) / everything for name in classes},
        spread(case.label_voxels for case in cases),
        spread(case.label_ml or 0.0 for case in cases) if known else None,
    )


def normalised(seen: Fingerprint, how: Pipeline) -> Fingerprint:
    """The same cases with normalised intensities.

    Normalising maps the intensities of a case by a rising function, so percentiles map to
    percentiles. The small effect of resampling and cropping is left out.
    """
    return Fingerprint(
        {
            site: {
                case: facts._replace(
                    percentiles=[_mapped(facts, k, how) for k in range(facts.channels)]
                )
                for case, facts in cases.items()
            }
            for site, cases in seen.sites.items()
        }
    )


def _mapped(case: CaseFacts, channel: int, how: Pipeline) -> list[float]:
    values = np.array(case.percentiles[channel])
    if how.normalise == "zscore":
        zero, width = case.moments[channel]
    else:
        outer = np.interp((LOW, HIGH), LEVELS, values)
        zero, one = how.window if how.normalise == "window" else (float(v) for v in outer)
        width = one - zero
    scaled = (values - zero) / max(width, NARROWEST)
    return [float(v) for v in np.clip(scaled, *LIMITS[how.normalise])]


def histogram(seen: Fingerprint, channel: int, bins: int) -> Histogram:
    """Every site's intensities between the outer percentiles, each case with equal weight."""
    curves = {
        site: [np.array(facts.percentiles[channel]) for facts in cases.values()]
        for site, cases in seen.sites.items()
    }
    ends = [
        np.median([np.interp((LOW, HIGH), LEVELS, curve) for curve in own], axis=0)
        for own in curves.values()
    ]
    low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    high = high if high > low else low + 1.0
    # Values that occur often fill several percentiles: a tiny ramp keeps them in order, and the
    # outer edges, moved by more than it, keep what lies on them.
    edges = np.linspace(low, high, bins + 1)
    edges[[0, -1]] += np.array([-1e-6, 1e-6]) * (high - low)
    ramp = np.linspace(0, 1e-7, len(LEVELS)) * (high - low)
    shares = {}
    for site, own in curves.items():
        below = [np.interp(edges, curve + ramp, LEVELS) for curve in own]
        shares[site] = [float(share) for share in np.diff(np.mean(below, axis=0)) / 100]
    return Histogram(low, high, shares)


def differences(
    sites: Mapping[str, SiteFacts], shift: Sequence[Shift], normalise: str
) -> list[str]:
    """Sentences on the differences between sites."""
    names = list(sites)
    if len(names) < 2:
        return ["There is one site, so there is nothing to compare."]
    said = [
        sentence
        for channel, found in enumerate(shift)
        for sentence in _far(
            names, found, normalise, f" of channel {channel + 1}" * (len(shift) > 1)
        )
    ]
    if not said:
        said.append(f"No site's intensities lie far from the others' (further than {FAR}).")
    volumes = {
        name: float(np.prod([axis.median for axis in site.spacing]))
        for name, site in sites.items()
        if site.spacing is not None
    }
    if len(volumes) == len(sites):
        said += _larger(volumes, "voxels are", LARGER_VOXELS)
    labels = {name: site.label_ml for name, site in sites.items() if site.label_ml is not None}
    if len(labels) < len(sites):
        labels = {name: site.label_voxels for name, site in sites.items()}
    known = {name: size.median for name, size in labels.items()}
    return said + _larger(known, "labels are", LARGER_LABELS)


def _far(names: Sequence[str], shift: Shift, normalise: str, what: str) -> list[str]:
    before, after = map(_typical, shift)
    far = [k for k, distance in enumerate(before) if distance >= FAR]
    said = []
    if len(far) > len(names) / 2:
        worst, left = max(before), max(after)
        said.append(
            f"Most sites' intensities{what} lie far apart as stored (up to {worst:.2f} from the "
            f"others); after {normalise} {_remains(left)}."
        )
    else:
        said += [
            f"The intensities{what} of {names[k]} lie far from the other sites' as stored "
            f"({before[k]:.2f}); after {normalise} {_remains(after[k])}."
            for k in far
        ]
    said += [
        f"The intensities{what} of {names[k]} lie far from the other sites' after {normalise} "
        f"({distance:.2f}), though not as stored ({before[k]:.2f})."
        for k, distance in enumerate(after)
        if distance >= FAR and k not in far
    ]
    return said


def _remains(distance: float) -> str:
    return f"they {'still do' if distance >= FAR else 'do not'} ({distance:.2f})"


def _typical(table: Sequence[Sequence[float]]) -> list[float]:
    """Every site's median distance from the others; of two, the nearer one."""
    return [
        statistics.median_low(distance for j, distance in enumerate(row) if j != i)
        for i, row in enumerate(table)
    ]


def _larger(sizes: Mapping[str, float], what: str, least: float) -> list[str]:
    said = []
    for name, size in sizes.items():
        usual = statistics.median(other for site, other in sizes.items() if site != name)
        low, high = sorted((size, usual))
        if low > 0 and (ratio := high / low) >= least:
            word = "larger" if size > usual else "smaller"
            said.append(f"The {what} {ratio:.1f} times {word} at {name} than usual elsewhere.")
    return said
