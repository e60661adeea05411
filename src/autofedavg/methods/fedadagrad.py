"""FedAdagrad: Adagrad's steps at the server (Reddi et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from autofedavg.core.settings import setting
from autofedavg.methods.base import About
from autofedavg.methods.shared.adaptive import AdaptiveMethod


class FedAdagrad(AdaptiveMethod):
    """w = w + server_rate m / (sqrt(v) + tau); v = v + Delta_bar^2."""

    name: Literal["fedadagrad"] = "fedadagrad"
    about: ClassVar[About] = About(
        family="server step",
        paper="Reddi et al. 2021, ICLR",
        rule="w = w + eta_s m / (sqrt(v) + tau); v = v + Delta_bar^2",
        fedavg="in the limit of large tau, with beta1 = 0 and server_rate = 2 tau",
        use="as FedAdam, with steps that shrink over rounds by themselves",
        keeps="server 2",
    )
    beta1: float = setting(
        0.0, origin="derived from the method's paper", help="momentum of the step", ge=0, lt=1
    )
    server_rate: float = setting(
        0.1, origin="derived from the method's paper", help="eta_s", gt=0, allow_inf_nan=False
    )

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
