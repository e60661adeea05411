"""Oddities of a data list that are worth a look before training."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from autofedavg.tasks.inspection.comparison import CaseLine, SiteFacts
from autofedavg.tasks.lists.splits import THREE

FEW = 5  # patients
ROBUST_Z = 6.0
LEAST = 0.05  # of the median: smallest spread, so that nearly constant sites are not all odd
SIGMA = 1.4826  # a normal distribution's standard deviation in units of its MAD


def oddities(cases: Mapping[str, Sequence[CaseLine]], sites: Mapping[str, SiteFacts]) -> list[str]:
    """Everything worth a look, site by site."""
    return [
        f"{site}: {said}" for site, lines in cases.items() for said in _of_site(lines, sites[site])
    ]


def _of_site(lines: Sequence[CaseLine], site: SiteFacts) -> Iterator[str]:
    if site.patients < FEW:
        yield f"fewer than {FEW} patients ({site.patients})"
    lacking = [split for split in THREE if any(site.splits) and not site.splits.get(split)]
    if lacking:
        yield f"no case for {' and '.join(lacking)}: a study will refuse this site"
    for name, share in site.shares.items():
        if not share:
            yield f"class {name} does not occur"
    unknown = [line.case for line in lines if line.facts.spacing is None]
    if 0 < len(unknown) < len(lines):
        yield f"the spacing of {_some(unknown)} is unknown, that of the others is known"
    empty = [line.case for line in lines if not line.label_voxels and not line.strange]
    if empty:
        yield f"empty label: {_some(empty)}"
    for line in lines:
        if line.strange:
            yield (
                f"{line.case}: label values that belong to no class: "
                f"{', '.join(map(str, line.strange))}"
            )
    yield from _outliers(lines)


def _outliers(lines: Sequence[CaseLine]) -> Iterator[str]:
    first = lines[0].facts
    for axis in range(len(first.grid)):
        sizes = [float(line.facts.grid[axis]) for line in lines]
        yield from _far_out(lines, sizes, f"grid along axis {axis + 1}", sizes)
        spacings = [line.facts.spacing for line in lines]
        known = [spacing[axis] for spacing in spacings if spacing is not None]
        if len(known) == len(lines):
            yield from _far_out(lines, known, f"spacing along axis {axis + 1}", known)
    for channel in range(first.channels):
        seen = [line.intensities(channel) for line in lines]
        which = f" of channel {channel + 1}" if first.channels > 1 else ""
        contrast = [one.high - one.low for one in seen]
        for what, values in (
            ("darkest", [one.low for one in seen]),
            ("median", [one.median for one in seen]),
            ("brightest", [one.high for one in seen]),
        ):
            yield from _far_out(lines, values, f"{what} intensity{which}", contrast)


def _far_out(
    lines: Sequence[CaseLine], values: Sequence[float], what: str, scale: Sequence[float]
) -> Iterator[str]:
    """The cases far from their site's median, in robust standard deviations."""
    middle = statistics.median(values)
    usual = SIGMA * statistics.median(abs(value - middle) for value in values)
    deviation = max(usual, LEAST * abs(statistics.median(scale)))
    far = [
        f"{line.case} ({value:.4g})"
        for line, value in zip(lines, values, strict=True)
        if abs(value - middle) > ROBUST_Z * deviation
    ]
    if far:
        yield f"{what} is far from the usual {middle:.4g}: {_some(far)}"


def _some(cases: Sequence[str]) -> str:
    more = f" and {len(cases) - 5} more" if len(cases) > 5 else ""
    return ", ".join(cases[:5]) + more
