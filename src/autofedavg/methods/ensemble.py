"""Ensemble: every client trains on its own, and their outputs are averaged (Table 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout
from autofedavg.core.settings import setting
from autofedavg.core.site import Facts
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Reach
from autofedavg.methods.base import About, Method, own_models, train_alone


class EnsembleMethod(Method):
    """The mean of the clients' softmax outputs, all with the same weight; decision 20."""

    name: Literal["ensemble"] = "ensemble"
    about: ClassVar[About] = About(
        family="control",
        paper="Table 1 of Wang et al. 2020, ICLR (FedMA)",
        rule="every site trains alone; the prediction is the mean of all K softmax outputs",
        fedavg="with one site",
        use="as an upper bound without averaging; predictions cost K forward passes",
        needs="K models wherever it predicts",
        keeps="server K",
    )
    initial: Literal["independent", "shared"] = setting(
        "independent",
        origin="derived from FedMA's code",
        help="initial weights: each client's own, or one draw for all",
    )

    @property
    def models_reach(self) -> Reach:
        return "sites"

    def models_validated(self, sites: int) -> int:
        return sites

    def begin(self, federation: Federation, start: Round) -> Round:
        return replace(start, w=own_models(federation, start.w))

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        fresh = t == 1 and self.initial == "independent"
        asked = super().asks(t, T, layout)
        return asked | {"local_train": [{"fresh": True}]} if fresh else asked

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        fresh = self.initial == "independent"
        return train_alone(federation, T, start, fresh=fresh, together=True)
