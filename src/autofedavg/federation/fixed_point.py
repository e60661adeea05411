"""Numbers as integers, so that masks cancel bit for bit and no order of adding changes a sum.

Models and gradients become int32, scalars and statistics int64. Sums wrap around: modulo 2^32 and
2^64. Every site stays within 1 / K of the range, so that the true sum of K sites never wraps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from autofedavg.core.errors import Diverged

EXACT_SITES = 16  # up to so many sites the steps are 2^-24
NARROW, WIDE = torch.int32, torch.int64
_WIDE_SCALE = 2.0**32


def scale_of(kind: torch.dtype, K: int) -> float:
    """How many steps a unit has, for sums over K sites."""
    if kind == WIDE:
        return _WIDE_SCALE
    doublings = max(0, (K - 1).bit_length() - (EXACT_SITES - 1).bit_length())
    return float(2 ** (24 - doublings))


def largest(kind: torch.dtype, K: int) -> float:
    """The largest number that each of K sites may send."""
    return (torch.iinfo(kind).max // K) / scale_of(kind, K)


def to_fixed(values: Tensor, kind: torch.dtype, K: int, where: str, remedy: str) -> Tensor:
    """Numbers as integers for a sum over K sites.

    Raises:
        Diverged: one is too large or not finite; it is never wrapped silently.
    """
    most, found = largest(kind, K), values.double()
    size = float(found.abs().max()) if found.numel() else 0.0
    if not size <= most:
        raise Diverged(
            f"a number of {size:.3g} is beyond {most:.3g}, the limit of a masked sum over {K} "
            f"sites; {remedy}",
            where=where,
            remedy=remedy,
        )
    return (found * scale_of(kind, K)).round().to(kind)


def from_fixed(total: Tensor, K: int) -> Tensor:
    """The sum that integers of K sites stand for, in float64."""
    return total.double() / scale_of(total.dtype, K)


def summed(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of the sites' arrays, by name, modulo the range."""
    totals: dict[str, Tensor] = {}
    for arrays in parts:
        for name, array in arrays.items():
            totals[name] = totals[name].add_(array) if name in totals else array.clone()
    return totals
