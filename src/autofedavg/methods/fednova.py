"""FedNova: updates are normalised by the length of the local path (Wang et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.bank import Layout, Model
from autofedavg.core.trainer import Training
from autofedavg.federation.local_training import LocalRequest
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class FedNova(AveragingMethod):
    """w = w + tau_eff sum_k p_k Delta_k / A_k, with tau_eff = sum_k p_k A_k."""

    name: Literal["fednova"] = "fednova"
    about: ClassVar[About] = About(
        family="local correction",
        paper="Wang et al. 2020, NeurIPS",
        rule="w = w + (sum_k p_k A_k) sum_k p_k Delta_k / A_k, A_k the length of k's local path",
        fedavg="where all sites take equally many steps: `iterations` are set",
        use="sites take very different numbers of local steps",
    )

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(tell=("reach",))

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "all sites take the same number of steps" if training.iterations else ""

    def aggregate(self, at: Aggregation) -> Model:
        reach = at.told(at.trained.reach)
        if bool((reach[0] == reach).all()):
            return at.mean
        return at.mixed((at.p * reach).sum() * at.p / reach)
