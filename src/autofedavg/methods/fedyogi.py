"""FedYogi: Yogi's steps at the server (Reddi et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from autofedavg.core.settings import setting
from autofedavg.methods.base import About
from autofedavg.methods.shared.adaptive import AdaptiveMethod


class FedYogi(AdaptiveMethod):
    """FedAdam with v = v - (1 - beta2) Delta_bar^2 sign(v - Delta_bar^2)."""

    name: Literal["fedyogi"] = "fedyogi"
    about: ClassVar[About] = About(
        family="server step",
        paper="Reddi et al. 2021, ICLR",
        rule="as FedAdam, with v = v - (1 - beta2) Delta_bar^2 sign(v - Delta_bar^2)",
        fedavg="in the limit of large tau, with beta1 = 0 and server_rate = 2 tau",
        use="as FedAdam, where updates are rare or sudden: v changes no faster than they do",
        keeps="server 2",
    )
    beta2: float = setting(
        0.99, origin="derived from the method's paper", help="memory of v", ge=0, lt=1
    )

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
