"""FedProx: FedAvg with a local pull towards the global model (Li et al. 2020)."""

from __future__ import annotations

from typing import Literal

from autofedavg.core.bank import Layout
from autofedavg.core.local_rules import Prox
from autofedavg.core.settings import setting
from autofedavg.federation.local_training import LocalRequest
from autofedavg.methods.averaging import AveragingMethod


class FedProx(AveragingMethod):
    """Each client minimises L_k(w) + (mu/2)||w - w^{t-1}||^2; weights n_k/n."""

    name: Literal["fedprox"] = "fedprox"
    mu: float = setting(
        0.001, origin="paper Sec. 4.2.1", help="strength of the pull to the global model", ge=0
    )

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(Prox(mu=self.mu)) if self.mu else LocalRequest()
