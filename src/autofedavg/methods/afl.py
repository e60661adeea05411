"""AFL: weights climb towards the sites with the largest loss (Mohri et al. 2019)."""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import ConfigError
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.federation.local_training import LocalRequest, Probe
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About
from autofedavg.methods.shared.simplex import present, project


class AFL(AveragingMethod):
    """min over w, max over lambda on the simplex, of sum_k lambda_k L_k(w).

    w is averaged with lambda, which then becomes Proj(lambda + gamma L(w^{t-1})). The result is
    the last model; the paper's is the mean of all rounds' models.
    """

    name: Literal["afl"] = "afl"
    about: ClassVar[About] = About(
        family="weights from losses and counts",
        paper="Mohri, Sivek and Suresh 2019, ICML",
        rule="lambda = Proj(lambda + gamma_t L), L_k the loss of w at site k before it trains",
        fedavg="rate = 0, in round 1, where all losses are equal, and with one site",
        use="the worst site counts, and no site is bad",
        needs="one more loss a round, on a few batches",
        keeps="server K numbers",
    )
    rate: float = setting(
        0.1, origin="derived from FedTorch's code", help="gamma of round 1", ge=0, le=1e6
    )
    decay: float = setting(
        0.9, origin="derived from FedTorch's code", help="factor on gamma per round", gt=0, le=1
    )
    floor: float = setting(
        1e-3, origin="derived from FedTorch's code", help="least weight of a site", ge=0, lt=1
    )
    learn_on: Literal["train", "validation", "holdout"] = setting(
        "train", origin="ours", help="cases that the losses are found on"
    )
    batches: int = setting(4, origin="ours", help="mini-batches that a loss is found on", ge=1)

    @property
    def learns_on(self) -> str:
        return self.learn_on

    def check(self, sites: int) -> None:
        super().check(sites)
        if self.floor * sites >= 1 and sites > 1:
            raise ConfigError(
                f"method.floor is {self.floor:g}, and {sites} sites with that weight leave nothing",
                where="method",
                remedy=f"set method.floor below 1/{sites}",
            )

    def cautions(self, sites: int) -> list[str]:
        return ["A bad site has a large loss, so it gains weight."]

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if self.rate == 0:
            return "rate is 0: the weights stay those of the sizes"
        return "one site has all the weight" if sites == 1 else ""

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(probe=Probe(self.learn_on, self.batches))

    def aggregate(self, at: Aggregation) -> Model:
        weights = at.memory.setdefault("weights", at.fixed)
        losses = at.told(at.trained.probed)
        ahead = losses - losses.min()  # a shift of all losses moves no weight
        if self.rate and bool(ahead.any()):
            here = weights[at.rows]
            total = float(here.sum())
            least = min(self.floor, total / len(here))
            climbed = here + self.rate * self.decay ** (at.t - 1) * ahead
            new = least + project(climbed - least, total - least * len(here))
            at.memory["weights"] = weights.index_copy(0, at.rows, new)
        return at.weighted(present(weights, at.rows))
