"""FedAvgM: momentum at the server (Hsu, Qi and Brown 2019)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class FedAvgM(AveragingMethod):
    """v = momentum v + Delta_bar; w = w + server_rate v."""

    name: Literal["fedavgm"] = "fedavgm"
    about: ClassVar[About] = About(
        family="server step",
        paper="Hsu, Qi and Brown 2019, arXiv 1909.06335",
        rule="v = beta v + Delta_bar; w = w + eta_s v",
        fedavg="momentum = 0 and server_rate = 1",
        use="updates keep their direction from round to round; cheap to try first",
        keeps="server 1",
    )
    momentum: float = setting(
        0.9, origin="derived from the method's paper", help="beta of the server", ge=0, lt=1
    )
    server_rate: float = setting(
        1.0, origin="derived from the method's paper", help="eta_s", gt=0, allow_inf_nan=False
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        plain = self.momentum == 0 and self.server_rate == 1
        return "the server's step is the mean update" if plain else ""

    def aggregate(self, at: Aggregation) -> Model:
        before = at.memory.get("velocity")
        before = torch.zeros_like(at.move) if before is None else before.to(at.move)
        at.memory["velocity"] = velocity = self.momentum * before + at.move
        return at.step(self.server_rate * velocity)
