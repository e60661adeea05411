"""FedAdam: Adam's steps at the server (Reddi et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from autofedavg.core.settings import setting
from autofedavg.methods.base import About
from autofedavg.methods.shared.adaptive import AdaptiveMethod


class FedAdam(AdaptiveMethod):
    """w = w + server_rate m / (sqrt(v) + tau); v = beta2 v + (1 - beta2) Delta_bar^2."""

    name: Literal["fedadam"] = "fedadam"
    about: ClassVar[About] = About(
        family="server step",
        paper="Reddi et al. 2021, ICLR",
        rule="w = w + eta_s m / (sqrt(v) + tau); v = beta2 v + (1 - beta2) Delta_bar^2",
        fedavg="in the limit of large tau, with beta1 = beta2 = 0 and server_rate = tau",
        use="updates differ much in size between layers; needs a tuned server_rate",
        keeps="server 2",
    )
    beta2: float = setting(
        0.99, origin="derived from the method's paper", help="memory of v", ge=0, lt=1
    )

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square
