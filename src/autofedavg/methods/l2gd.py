"""L2GD: models of the sites' own, moved part of the way to their mean (Hanzely, Richtarik 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.algorithm import Round, among
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.local_rules import Keep
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.federation.local_training import LocalRequest
from autofedavg.federation.port import Federation
from autofedavg.methods.base import About, Method, even_weights, own_models


class L2GD(Method):
    """x_k <- (1 - a) x_k + a x_bar after every LocalTrain from x_k; the global model is x_bar."""

    name: Literal["l2gd"] = "l2gd"
    about: ClassVar[About] = About(
        family="personal",
        paper="Hanzely and Richtarik 2020, arXiv 2002.05516",
        rule="x_k <- (1 - a) x_k + a x_bar after LocalTrain from x_k; x_k before that is personal",
        fedavg="with a = 1 and even weights; a = 0 is local-only",
        use="sites differ, and their models may stay apart",
        keeps="server K, site 1",
    )
    share: float = setting(
        0.5, origin="ours", help="a, how far a site's model moves to the mean", ge=0, le=1
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "a = 1 puts every site's model at the mean: even weights" if self.share == 1 else ""

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(Keep())

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        request, alpha = self.local(layout), even_weights(federation)
        w, memory = start.w, dict(start.memory)
        for t in range(start.t + 1, T + 1):
            x_k = _bank(federation, memory) if memory else w
            trained = federation.local_train(t, x_k, T=T, request=request)
            mean = trained.w_k.combine(among(alpha, federation, trained.w_k))
            memory = self.moved(federation, own_models(federation, x_k), trained.w_k, mean)
            w = federation.as_sent(mean)
            yield Round(
                t, w, None, alpha, trained.w_k, trained.losses,
                memory=dict(memory), personal=request.rule,
            )  # fmt: skip

    def moved(
        self, federation: Federation, before: Bank, w_k: Bank, mean: Model
    ) -> dict[str, Tensor]:
        """All K models of the next round; a site that is absent has the one that it had."""
        rows = torch.tensor(federation.rows(w_k.sites), device=w_k.values.device)
        counters = mean.counters.expand_as(w_k.counters) if self.share else w_k.counters
        near = torch.lerp(w_k.values, mean.values, self.share)
        memory = {"x_k": before.values.to(near).index_copy(0, rows, near)}
        if counters.numel():
            memory["counters"] = before.counters.to(counters).index_copy(0, rows, counters)
        return memory


def _bank(federation: Federation, memory: Mapping[str, Tensor]) -> Bank:
    none = torch.empty(federation.K, 0, dtype=torch.int64, device=memory["x_k"].device)
    return Bank(federation.names, memory["x_k"], memory.get("counters", none))
