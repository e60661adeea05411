"""FedLWS: every layer of the average is shrunk by how much the updates disagree (Shi et al. 2025).

Layer l of FedAvg's model is multiplied by ||w_l|| / (||w_l|| + tau_l ||Delta_bar_l||), where tau_l
is `strength` times the mean distance of the Delta_k,l from their mean, kept within `least` and
`most`. Normalisation layers and statistics are left alone, and so is a layer of zeros, which would
never leave zero. The method's code shrinks them with the layer behind them.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import model_validator

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class FedLWS(AveragingMethod):
    """w_l = gamma_l sum_k p_k w_k,l with gamma_l = ||w_l|| / (||w_l|| + tau_l ||Delta_bar_l||)."""

    name: Literal["fedlws"] = "fedlws"
    about: ClassVar[About] = About(
        family="weights from geometry",
        paper="Shi et al. 2025, ICLR",
        rule="layer l of sum_k p_k w_k times ||w_l|| / (||w_l|| + tau_l ||Delta_bar_l||)",
        fedavg="strength = 0 and least = 0",
        use="the global model overfits; compare with FedAvg and more weight decay",
    )
    strength: float = setting(
        0.03,
        origin="derived from the method's code",
        help="tau_l for a mean distance of 1 between an update and their mean",
        ge=0,
        allow_inf_nan=False,
    )
    least: float = setting(
        0.01,
        origin="derived from the method's code",
        help="smallest tau_l",
        ge=0,
        allow_inf_nan=False,
    )
    most: float = setting(
        0.2,
        origin="derived from the method's code",
        help="largest tau_l",
        ge=0,
        allow_inf_nan=False,
    )

    @model_validator(mode="after")
    def _fits_together(self) -> FedLWS:
        if self.least > self.most:
            raise ValueError(f"least = {self.least} is above most = {self.most}; use at most that")
        return self

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "" if self.most and (self.strength or self.least) else "tau is 0: nothing is shrunk"

    def aggregate(self, at: Aggregation) -> Model:
        layers, norms = at.layout.layers("module"), at.layout.normalisation
        gram = at.gram(layers)
        even = torch.full_like(at.p, 1 / len(at.p))
        tau = (self.strength * gram.distances(even).mean(-1)).clamp(self.least, self.most)
        moved = ((gram.deltas @ at.p) @ at.p).clamp(min=0).sqrt()
        size = gram.square.sqrt()
        values = at.mean.values[: at.layout.trainable].clone()
        for start, stop, p in layers.segments:
            normalises = any(first <= start < last for first, last in norms)
            if size[p] > 0 and not normalises:
                values[start:stop] *= float(size[p] / (size[p] + tau[p] * moved[p]))
        return at.trained_part(values)
