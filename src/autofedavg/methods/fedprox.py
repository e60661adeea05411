"""FedProx: FedAvg with a local pull towards the global model (Li et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.bank import Layout
from autofedavg.core.local_rules import Prox
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.federation.local_training import LocalRequest
from autofedavg.methods.averaging import AveragingMethod
from autofedavg.methods.base import About


class FedProx(AveragingMethod):
    """Each client minimises L_k(w) + (mu/2)||w - w^{t-1}||^2; weights n_k/n."""

    name: Literal["fedprox"] = "fedprox"
    about: ClassVar[About] = About(
        family="local correction",
        paper="Li et al. 2020, MLSys",
        rule="w by FedAvg; sites minimise L_k(v) + (mu/2)||v - w||^2",
        fedavg="mu = 0",
        use="sites differ and take many local steps",
    )
    mu: float = setting(
        0.001, origin="paper Sec. 4.2.1", help="strength of the pull to the global model", ge=0
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "" if self.mu else "mu is 0: nothing pulls"

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(Prox(mu=self.mu)) if self.mu else LocalRequest()
