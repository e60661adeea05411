"""FedAvg: given weights, by data-set size or even (McMahan et al. 2017; the paper's Sec. 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from torch import Tensor

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout
from autofedavg.core.constraints import Dirichlet
from autofedavg.core.seeds import Purpose
from autofedavg.core.settings import setting
from autofedavg.federation.port import Federation
from autofedavg.methods.base import Method, even_weights, fed_avg, size_weights


class FedAvg(Method):
    """w = sum_k alpha_k w_k with alpha_k = n_k/n or 1/K, or drawn, as a control."""

    name: Literal["fedavg"] = "fedavg"
    weights: Literal["size", "even", "random"] = setting(
        "size",
        origin="paper Sec. 3.1; ours: decision 40 (random)",
        help="n_k/n, 1/K (the paper's FedAvg-even), or alpha ~ Dir(6, .., 6)",
    )
    redraw: int = setting(
        10, origin="ours: decision 40", help="rounds between two draws of random weights", ge=1
    )

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        return fed_avg(federation, self._alpha(federation), T, start)

    def _alpha(self, federation: Federation) -> Callable[[int], Tensor]:
        """The weights of round t."""
        if self.weights == "random":
            return partial(self._drawn, federation)
        fixed = size_weights(federation) if self.weights == "size" else even_weights(federation)
        return lambda t: fixed

    def _drawn(self, federation: Federation, t: int) -> Tensor:
        """Even until the first draw, as learned weights are until they are learned."""
        if t < self.redraw:
            return even_weights(federation)
        gamma = Dirichlet()
        chance = federation.seeds.generator("server", Purpose.ALPHA, t // self.redraw)
        return gamma.sample(gamma.initial(federation.K), chance)
