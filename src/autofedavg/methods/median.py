"""Coordinate median: the middle of the clients' models, number by number (Chen et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


def middle(block: Tensor) -> Tensor:
    """The median of every column, (K, B) to (B,); of an even number, the mean of the middle two."""
    K, ordered = len(block), block.sort(dim=0).values
    return (ordered[(K - 1) // 2] + ordered[K // 2]) / 2


class Median(AveragingMethod):
    """w + med_k Delta_k = med_k w_k in every coordinate; sizes do not count."""

    name: Literal["median"] = "median"
    about: ClassVar[About] = About(
        family="robust",
        paper="Chen et al. 2020, arXiv 1906.01736",
        rule="w = median_k w_k, number by number; buffers averaged by size",
        fedavg="with one site; two sites give even weights",
        use="a site may be bad, and there are five sites or more",
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        said = {1: "one site has all the weight", 2: "the median of two models is their mean"}
        return f"{said[sites]}: even weights" if sites in said else ""

    def aggregate(self, at: Aggregation) -> Model:
        at.alpha = None
        if len(at.w_k.sites) <= 2:
            even = torch.full_like(at.p, 1 / len(at.p))
            return at.trained_part(at.w_k.combine(even).values[: at.layout.trainable])
        return at.trained_part(at.w_k.columns(middle, at.layout.trainable))
