"""Robust weights: the f sites with the highest losses get none (Parsa et al. 2026).

The paper's problem is to minimise sum_k a_k L_k(w) over w and the weights a: on the simplex, with
at most K - f of them above zero and none above a cap. With r_k = a_k / p_k, each round takes a step
against the losses and projects: the K - f largest r_k stay, and r_k <= cap / (their share of the
cases). With sites of one size and cap = 1 that is the paper's set, a_k <= 1/(K - f).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import ConfigError
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.federation.local_training import LocalRequest, Probe
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About
from autofedavg.methods.shared.capped_simplex import capped


class RobustWeights(AveragingMethod):
    """Weights follow the sites' losses of w downwards; f sites have none."""

    name: Literal["robust-weights"] = "robust-weights"
    about: ClassVar[About] = About(
        family="robust",
        paper="Parsa et al. 2026, ICLR (their FedLAW)",
        rule="a = projection of a - step p L: at most K - f sites, none above cap times its share",
        fedavg="f = 0 with step = 0 or cap = 1",
        use="up to f sites may be bad, and their losses show it",
        needs="the loss of w at every site, before it trains",
        keeps="K numbers",
    )
    f: int = setting(
        1, origin="derived from the method's paper", help="sites that get no weight", ge=0
    )
    step: float = setting(
        10.0, origin="ours", help="step against the losses", ge=0, allow_inf_nan=False
    )
    cap: float = setting(
        1.0,
        origin="derived from the method's paper",
        help="largest weight, as a multiple of the site's share among those with weight",
        ge=1,
        allow_inf_nan=False,
    )
    learn_on: Literal["train", "validation", "holdout"] = setting(
        "train", origin="ours", help="local data that the loss of w is found on"
    )
    batches: int = setting(4, origin="ours", help="mini-batches of that loss", ge=1)

    @property
    def learns_on(self) -> str:
        return self.learn_on

    def check(self, sites: int) -> None:
        if sites < 2 * self.f + 1:
            raise ConfigError(
                f"f = {self.f} of {sites} sites is half of them or more",
                where="method",
                remedy=f"set f to at most {max(0, (sites - 1) // 2)}, or add sites",
            )
        if self.f and not self.step:
            raise ConfigError(
                f"step = 0 does not look at losses, so nothing tells which f = {self.f} are bad",
                where="method",
                remedy="set step above 0, or f to 0",
            )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if self.f or (self.step and self.cap > 1):
            return ""
        return (
            "step = 0 keeps FedAvg's weights"
            if not self.step
            else "cap = 1 with f = 0 leaves no choice"
        )

    def cautions(self, sites: int) -> list[str]:
        return [
            "robust-weights trusts the reported losses: a site that reports low ones gains weight"
        ]

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(probe=Probe(self.learn_on, self.batches))

    def aggregate(self, at: Aggregation) -> Model:
        ratio = at.memory.get("ratio", torch.ones(at.federation.K, dtype=torch.float64))
        wanted = ratio[at.rows] - self.step * at.told(at.trained.probed)
        kept = wanted.argsort(descending=True, stable=True)[: max(1, len(wanted) - self.f)]
        share = float(at.p[kept].sum()) if self.f else 1.0
        found = torch.zeros_like(wanted)
        found[kept] = capped(wanted[kept], at.p[kept], self.cap / share)
        at.memory["ratio"] = ratio.index_copy(0, at.rows, found)
        return at.weighted(at.p * found)
