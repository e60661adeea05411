"""Local only: every client trains on its own, and nothing is averaged (first rows of Table 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout
from autofedavg.core.site import Facts
from autofedavg.federation.port import Federation
from autofedavg.methods.base import About, Method, own_models, train_alone


class LocalOnly(Method):
    """w_k^t = LocalTrain(k, w_k^{t-1}); there is no global model."""

    name: Literal["local-only"] = "local-only"
    about: ClassVar[About] = About(
        family="control",
        paper="Table 2 of Xia et al. 2021, arXiv 2104.10195",
        rule="w_k = LocalTrain(k, w_k): every site trains alone, and nothing is averaged",
        fedavg="with one site",
        use="as a lower bound: what a site reaches without the others",
        keeps="server K",
    )

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        return {"local_train": [{}]}

    def begin(self, federation: Federation, start: Round) -> Round:
        return replace(start, w=own_models(federation, start.w))

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        return train_alone(federation, T, start)
