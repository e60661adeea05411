"""FedAvg with fine-tuning: the control of every personal method."""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.bank import Layout
from autofedavg.core.local_rules import Keep
from autofedavg.federation.local_training import LocalRequest
from autofedavg.methods.averaging import AveragingMethod
from autofedavg.methods.base import About


class FedAvgFineTuned(AveragingMethod):
    """w is FedAvg's; a site's personal model is w^{t-1} after LocalTrain at that site: its w_k."""

    name: Literal["fedavg-ft"] = "fedavg-ft"
    about: ClassVar[About] = About(
        family="personal",
        paper="McMahan et al. 2017, AISTATS, with local fine-tuning",
        rule="w by FedAvg; the personal model of site k is its w_k",
        fedavg="its global model always does",
        use="first of all: a personal method must beat this control",
        keeps="site 1",
    )

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(Keep())
