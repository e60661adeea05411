"""SCAFFOLD: control variates take the drift out of local steps (Karimireddy et al. 2020).

Every local step moves against g - c_k + c. The server keeps c and all c_k, so sites stay without
state: each is sent c - c_k with the model. The new c_k is the mean of the round's mini-batch
gradients: the paper's option II for plain SGD, and right for momentum and Adam too (decision 61).
"""

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
from autofedavg.methods.base import About, even_weights, size_weights


class Scaffold(AveragingMethod):
    """Local steps along g - c_k + c; w = w + server_rate sum_k p_k Delta_k, c = sum_k p_k c_k."""

    name: Literal["scaffold"] = "scaffold"
    about: ClassVar[About] = About(
        family="local correction",
        paper="Karimireddy et al. 2020, ICML",
        rule="local steps along g - c_k + c; c_k = mean gradient of site k",
        fedavg="in round 1, with one site, and where all sites have the same data",
        use="sites differ and take many local steps; all of them take part",
        keeps="server K + 1",
    )
    weights: Literal["size", "even"] = setting(
        "size", origin="ours", help="p_k of both w and c: n_k/n, or 1/K; they set the objective"
    )
    server_rate: float = setting(
        1.0, origin="derived from the method's paper", help="eta_g", gt=0, allow_inf_nan=False
    )

    def fixed_weights(self, federation: Federation, t: int) -> Tensor:
        return size_weights(federation) if self.weights == "size" else even_weights(federation)

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(Shift(mean_gradient=True), length=layout.trainable)

    def along(self, federation: Federation, layout: Layout, memory: dict[str, Tensor]) -> Along:
        c_k = memory.get("c_k")
        if c_k is None:
            zero = torch.zeros(layout.trainable, dtype=layout.dtype)
            return {"shift": zero}
        c = self.fixed_weights(federation, 0).to(c_k) @ c_k
        return {"shift": {name: c - c_k[k] for k, name in enumerate(federation.names)}}

    def aggregate(self, at: Aggregation) -> Model:
        found = torch.stack([at.trained.back["mean_gradient"][name] for name in at.w_k.sites]).cpu()
        c_k = at.memory.get("c_k")
        c_k = found.new_zeros(at.federation.K, found.shape[1]) if c_k is None else c_k
        at.memory["c_k"] = c_k.index_copy(0, at.rows, found)
        return at.step(self.server_rate * at.move)
