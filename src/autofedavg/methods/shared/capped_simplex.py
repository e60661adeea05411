"""The projection on a simplex whose points have a largest entry."""

from __future__ import annotations

import torch
from torch import Tensor

SLACK = 1e-12  # rounding in a sum of weights


def capped(v: Tensor, p: Tensor, top: float) -> Tensor:
    """The x nearest to v with 0 <= x <= top and sum_k p_k x_k = 1; squares count by p.

    It is x_k = clip(v_k - shift, 0, top), whose sum falls with the shift in straight pieces.
    """
    if float((p @ v - 1).abs()) <= SLACK and bool(((v >= 0) & (v <= top + SLACK)).all()):
        return v
    if float(p.sum()) * top <= 1 + SLACK:
        return torch.full_like(v, top)
    ends = torch.cat([v, v - top]).sort().values
    sums = (v - ends[:, None]).clamp(0, top) @ p
    i = int((sums >= 1).sum()) - 1
    shift = ends[i] + (ends[i + 1] - ends[i]) * (sums[i] - 1) / (sums[i] - sums[i + 1])
    return (v - shift).clamp(0, top)
