"""Trimmed mean: extremes are left out number by number (Yin et al. 2018)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class TrimmedMean(AveragingMethod):
    """The mean of the w_k in every coordinate, without the extremes; sizes do not count."""

    name: Literal["trimmed-mean"] = "trimmed-mean"
    about: ClassVar[About] = About(
        family="robust",
        paper="Yin et al. 2018, ICML",
        rule="mean of every number without floor(trim K) at each end; buffers averaged by size",
        fedavg="where trim K < 1: even weights",
        use="a site may be bad, and there are five sites or more",
    )
    trim: float = setting(
        0.2, origin="derived from Flower's code", help="share left out at each end", ge=0, lt=0.5
    )

    def cut(self, sites: int) -> int:
        """How many models are left out at each end; at least one is kept."""
        return min(int(self.trim * sites + 1e-9), (sites - 1) // 2)

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if self.cut(sites):
            return ""
        return f"trim = {self.trim:g} leaves out none of {sites} models: even weights"

    def aggregate(self, at: Aggregation) -> Model:
        n, end = len(at.p), at.layout.trainable
        cut = self.cut(n)
        if not cut:
            even = torch.full_like(at.p, 1 / n)
            at.record(even)
            return at.trained_part(at.w_k.combine(even).values[:end])

        def inner(block: Tensor) -> Tensor:
            kept = block.sort(dim=0).values[cut : n - cut]
            return kept[0] + (kept - kept[0]).mean(dim=0)  # equal numbers keep their bits

        at.alpha = None
        return at.trained_part(at.w_k.columns(inner, end))
