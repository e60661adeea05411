"""Weights of K clients: numbers from 0 that sum to one."""

from __future__ import annotations

import torch
from torch import Tensor


def project(v: Tensor, total: float = 1.0) -> Tensor:
    """The nearest point (Euclidean) with entries from 0 that sum to `total`.

    Example:
        >>> project(torch.tensor([1.2, 0.3], dtype=torch.float64))
        tensor([0.9500, 0.0500], dtype=torch.float64)
    """
    if total <= 0:
        return torch.zeros_like(v)
    ordered = v.sort(descending=True).values
    counts = torch.arange(1, len(v) + 1, dtype=v.dtype)
    excess = (ordered.cumsum(0) - total) / counts
    last = int((ordered > excess).nonzero()[-1])
    return (v - excess[last]).clamp(min=0)


def shares(v: Tensor) -> Tensor:
    """Numbers from 0 divided by their sum; even where all are 0."""
    total = v.sum()
    return v / total if float(total) > 0 else torch.full_like(v, 1 / len(v))


def present(weights: Tensor, rows: Tensor) -> Tensor:
    """The weights of the clients in these rows, which sum to one again if some are absent."""
    here = weights[rows]
    return here if len(here) == len(weights) else shares(here)


def replaced(weights: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """The weights of all clients; those in these rows share anew what they had together.

    Args:
        weights: (K,), on the simplex.
        rows: the clients whose weights change; those of the others stay.
        new: their weights among themselves, on the simplex.
    """
    whole = 1.0 if len(new) == len(weights) else weights[rows].sum()
    return weights.index_copy(0, rows, new * whole)
