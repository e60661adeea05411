"""Two halves of a site's cases: weights are fitted on one, and scored on the other."""

from __future__ import annotations

import torch

from autofedavg.core.errors import DataError
from autofedavg.core.seeds import Purpose, Seeds

HALVES = (0, 1)


def half_size(n: int, half: int) -> int:
    """The cases of a half of n: the first has one more of an odd number.

    Example:
        >>> half_size(5, 0), half_size(5, 1)
        (3, 2)
    """
    return (n + 1 - half) // 2


def half_of(seeds: Seeds, site: str, n: int, half: int) -> list[int]:
    """The positions, in order, of a half of a site's n cases; drawn once for a run.

    Raises:
        DataError: there are too few cases, or no such half.
    """
    if n < len(HALVES) or half not in HALVES:
        raise DataError(
            f"{n} cases have no half {half}",
            where=f"site {site}",
            remedy="give every site at least two cases",
        )
    order = torch.randperm(n, generator=seeds.generator(site, Purpose.HALVES)).tolist()
    first = half_size(n, 0)
    return sorted(order[first:] if half else order[:first])
