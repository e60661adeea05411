"""FedProx: FedAvg with a local pull towards the global model (Li et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout
from autofedavg.core.settings import setting
from autofedavg.core.site import Facts
from autofedavg.federation.port import Federation
from autofedavg.methods.base import Method, fed_avg, size_weights


class FedProx(Method):
    """Each client minimises L_k(w) + (mu/2)||w - w^{t-1}||^2; weights n_k/n."""

    name: Literal["fedprox"] = "fedprox"
    mu: float = setting(
        0.001, origin="paper Sec. 4.2.1", help="strength of the pull to the global model", ge=0
    )

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        asked = super().asks(t, T, layout)
        return asked | {"local_train": [{"mu": self.mu}]} if self.mu else asked

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        alpha = size_weights(federation)
        return fed_avg(federation, lambda t: alpha, T, start, self.mu)
