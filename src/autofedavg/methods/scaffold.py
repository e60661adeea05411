"""SCAFFOLD: control variates, kept at the server, correct local steps (decision 61)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.local_rules import Shift
from autofedavg.core.settings import setting
from autofedavg.federation.local_training import Along, LocalRequest
from autofedavg.federation.port import Federation
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About, weights_by


class Scaffold(AveragingMethod):
    """Local steps along g - c_k + c; c_k is the mean gradient of site k in its last round."""

    name: Literal["scaffold"] = "scaffold"
    about: ClassVar[About] = About(
        family="local correction",
        paper="Karimireddy et al. 2020, ICML",
        rule="local steps along g - c_k + c, c_k the mean gradient of site k, c = sum_k p_k c_k",
        fedavg="in round 1, with one site, and where all sites have the same data",
        use="sites differ and take many local steps, and all of them take part",
        keeps="server K",
    )
    weights: Literal["size", "even"] = setting(
        "size", origin="ours", help="p_k of both w and c, n_k/n or 1/K: they set the objective"
    )

    def fixed_weights(self, federation: Federation, t: int) -> Tensor:
        return weights_by(self.weights, federation)

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(Shift(mean_gradient=True), length=layout.trainable)

    def along(self, federation: Federation, layout: Layout, memory: dict[str, Tensor]) -> Along:
        c_k = memory.get("c_k", torch.zeros(federation.K, layout.trainable, dtype=layout.dtype))
        c = self.fixed_weights(federation, 0).to(c_k) @ c_k
        return {"shift": {name: c - c_k[k] for k, name in enumerate(federation.names)}}

    def aggregate(self, at: Aggregation) -> Model:
        found = torch.stack([at.trained.back["mean_gradient"][name] for name in at.w_k.sites])
        c_k = at.memory.get("c_k", found.new_zeros(at.federation.K, found.shape[1]))
        at.memory["c_k"] = c_k.to(found).index_copy(0, at.rows.to(found.device), found)
        return at.mean
