"""FedAvg: fixed weights, by data-set size or even (McMahan et al. 2017; the paper's Sec. 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from autofedavg.algorithm import Round, fed_avg
from autofedavg.averaging import Layout
from autofedavg.federation import Federation
from autofedavg.method import Method, even_weights, size_weights
from autofedavg.settings import setting


class FedAvg(Method):
    """w = sum_k alpha_k w_k with alpha_k = n_k/n or 1/K."""

    name: Literal["fedavg"] = "fedavg"
    weights: Literal["size", "even"] = setting(
        "size", origin="paper Sec. 3.1", help="n_k/n, or 1/K (the paper's FedAvg-even)"
    )

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        fixed = size_weights if self.weights == "size" else even_weights
        return fed_avg(federation, fixed(federation), T, start)
