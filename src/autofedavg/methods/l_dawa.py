"""L-DAWA: every tensor counts by its angle to the global one (Rehman et al. 2023).

Cosines may be negative, and do not sum to one: tensors that turned are shrunk. Where a cosine does
not exist, as a tensor is zero, it is 1: zeros, as in a new bias, would otherwise stay zeros.
Statistics are averaged by size.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.bank import Model
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class LDawa(AveragingMethod):
    """w_l = (1/K) sum_k cos(w_k,l, w_l) w_k,l for every tensor l; sizes do not count."""

    name: Literal["l-dawa"] = "l-dawa"
    about: ClassVar[About] = About(
        family="weights from geometry",
        paper="Rehman et al. 2023, ICCV",
        rule="w_l = (1/K) sum_k cos(w_k,l, w_l) w_k,l, tensor by tensor",
        fedavg="never; even weights where no tensor turns",
        use="sites' models turn away from the global one; made for self-supervised training",
    )

    def aggregate(self, at: Aggregation) -> Model:
        at.alpha = None
        layers, end = at.layout.layers("tensor"), at.layout.trainable
        weights = at.gram(layers).cosines.t() / len(at.w_k.sites)
        return at.trained_part(at.w_k.combine(weights, layers).values[:end])
