"""Ditto: a personal model per site, pulled towards the global one (Li et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.bank import Layout
from autofedavg.core.local_rules import Personal
from autofedavg.core.settings import setting
from autofedavg.federation.local_training import LocalRequest
from autofedavg.methods.averaging import AveragingMethod
from autofedavg.methods.base import About


class Ditto(AveragingMethod):
    """w is FedAvg's; site k also trains v_k on L_k(v) + (pull/2)||v - w||^2, and keeps it."""

    name: Literal["ditto"] = "ditto"
    about: ClassVar[About] = About(
        family="personal",
        paper="Li et al. 2021, ICML",
        rule="w by FedAvg; v_k stays at site k: gradient of L_k(v_k) + pull (v_k - w)",
        fedavg="its global model always does; pull = 0 makes v_k local-only",
        use="sites differ, and each may have a model of its own",
        needs="twice the local compute",
        keeps="site 1",
    )
    pull: float = setting(
        1.0, origin="derived from the method's code", help="lambda, the pull towards w", ge=0
    )

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(Personal(mu=self.pull))
