"""FedAWA: weights that follow the geometry of the updates (Shi et al. 2025).

a = softmax(x) weighs round t; then x takes one step against

    sum_k a_k ||Delta_k - sum_j a_j Delta_j|| + sum_k a_k (1 - cos(w_k, w)).

As in the method's code, x starts at p itself and the step is the first of a new Adam,
rate g / (|g| + 1e-8): Adam's betas make no difference to it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.core.bank import Gram, Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About

SAME = 1e-6  # a distance, relative to ||Delta_k||, below which there is only rounding


class FedAWA(AveragingMethod):
    """w = sum_k softmax(x)_k w_k; x follows the distances between the updates."""

    name: Literal["fedawa"] = "fedawa"
    about: ClassVar[About] = About(
        family="weights from geometry",
        paper="Shi et al. 2025, CVPR",
        rule="w = sum_k a_k w_k, a = softmax(x); x steps towards updates near the mean",
        fedavg="with one site; round 1 has nearly even weights, softmax(p)",
        use="compare with even weights first: two weights drift apart by at most e^(2 rate t)",
        keeps="server K numbers",
    )
    rate: float = setting(
        1e-3,
        origin="derived from the method's code",
        help="step of x in a round",
        gt=0,
        allow_inf_nan=False,
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "one site has all the weight" if sites == 1 else ""

    def aggregate(self, at: Aggregation) -> Model:
        x = at.memory.get("x", at.fixed)
        a = torch.softmax(x[at.rows], dim=0)
        gradient = slope(at.gram(), a)
        stepped = x[at.rows] - self.rate * gradient / (gradient.abs() + 1e-8)
        at.memory["x"] = x.index_copy(0, at.rows, stepped)
        return at.weighted(a)


def slope(gram: Gram, a: Tensor) -> Tensor:
    """The derivative of the loss in x, (K,), at a = softmax(x)."""
    own, seen = gram.deltas.diagonal(), gram.deltas @ a
    far = gram.distances(a)
    apart = far > SAME * own.sqrt()  # a norm has no slope at zero
    pull = torch.where(apart, a / torch.where(apart, far, 1.0), 0.0)  # a_k / ||Delta_k - mean||
    towards = torch.where(apart, far, 0.0) + seen * pull.sum() - gram.deltas @ pull
    in_a = towards + 1 - gram.cosines
    return a * (in_a - (a * in_a).sum())
