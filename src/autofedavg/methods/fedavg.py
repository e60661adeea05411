"""FedAvg: given weights, by data-set size or even (McMahan et al. 2017; the paper's Sec. 3.1)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from autofedavg.core.constraints import Dirichlet
from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import Purpose
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.federation.port import Federation
from autofedavg.methods.averaging import AveragingMethod
from autofedavg.methods.base import About, even_weights, size_weights


class FedAvg(AveragingMethod):
    """w = sum_k alpha_k w_k with alpha_k = n_k/n or 1/K, or drawn, as a control."""

    name: Literal["fedavg"] = "fedavg"
    about: ClassVar[About] = About(
        family="averaging",
        paper="McMahan et al. 2017, AISTATS",
        rule="w = sum_k p_k w_k, p_k = n_k/n, 1/K or drawn at random",
        fedavg='weights = "size" is FedAvg itself',
        use="first: every other method is compared with it",
    )
    weights: Literal["size", "even", "random"] = setting(
        "size",
        origin="paper Sec. 3.1; ours: decision 40 (random)",
        help="n_k/n, 1/K (the paper's FedAvg-even), or alpha ~ Dir(6, .., 6)",
    )
    redraw: int = setting(
        10, origin="ours: decision 40", help="rounds between two draws of random weights", ge=1
    )

    def check(self, sites: int) -> None:
        super().check(sites)
        if self.weights != "random" and self.redraw != type(self)().redraw:
            raise ConfigError(
                f"redraw = {self.redraw} does nothing with weights = {self.weights!r}",
                where="method",
                remedy="leave it out, or set weights = 'random'",
            )

    def unsuited(self, training: Training, T: int) -> str:
        if self.weights != "random" or self.redraw <= T:
            return ""
        return f"with redraw = {self.redraw} no weights are drawn in {T} rounds: they stay 1/K"

    def fixed_weights(self, federation: Federation, t: int) -> Tensor:
        if self.weights == "size":
            return size_weights(federation)
        if self.weights == "even" or t < self.redraw:
            return even_weights(federation)  # random: until the first draw, as learned ones are
        gamma = Dirichlet()
        chance = federation.seeds.generator("server", Purpose.ALPHA, t // self.redraw)
        return gamma.sample(gamma.initial(federation.K), chance)
