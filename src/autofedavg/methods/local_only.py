"""Local only: every client trains on its own, and nothing is averaged (first rows of Table 2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from autofedavg.algorithm import Round
from autofedavg.averaging import Bank, Layout, Model, model_for
from autofedavg.federation import Federation
from autofedavg.method import Method


class LocalOnly(Method):
    """w_k^t = LocalTrain(k, w_k^{t-1}); there is no global model."""

    name: Literal["local-only"] = "local-only"

    @property
    def has_global_model(self) -> bool:
        return False

    def begin(self, federation: Federation, start: Round) -> Round:
        w = start.w
        if isinstance(w, Model):
            w = Bank.gather(dict.fromkeys(federation.names, w))
        return Round(start.t, w)

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        w = start.w
        for t in range(start.t + 1, T + 1):
            w_k, losses = federation.local_train(t, w, T=T)
            w = w_k if len(w_k.sites) == federation.K else _with_absent(federation, w_k, w)
            yield Round(t, w, None, None, w_k, losses)


def _with_absent(federation: Federation, w_k: Bank, before: Model | Bank) -> Bank:
    """All K models: a client that sat out a round goes on later from what it had."""
    rows = {
        name: model_for(w_k if name in w_k.sites else before, name) for name in federation.names
    }
    return Bank.gather(rows)
