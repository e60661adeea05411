"""Multi-Krum: the mean of the models that lie nearest to the others (Blanchard et al. 2017)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import ConfigError
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class MultiKrum(AveragingMethod):
    """The plain mean of the K - f models with the nearest neighbours; sizes do not count."""

    name: Literal["multi-krum"] = "multi-krum"
    about: ClassVar[About] = About(
        family="robust",
        paper="Blanchard et al. 2017, NeurIPS",
        rule="mean of the K - f models with the least sum of squares to their K - f - 2 nearest",
        fedavg="f = 0, and so with fewer than five sites: even weights",
        use="up to f sites may be bad, and there are 2f + 3 sites or more",
    )
    f: Annotated[int, Field(ge=0)] | Literal["auto"] = setting(
        "auto",
        origin="ours",
        help="bad sites to tolerate; 'auto': as many as K allows, (K - 3) // 2",
    )
    keep: int = setting(
        0,
        origin="derived from the method's paper",
        help="models that are averaged; 0: K - f; 1: Krum",
        ge=0,
    )

    def bad(self, sites: int) -> int:
        """F for this number of sites."""
        return max(0, (sites - 3) // 2) if self.f == "auto" else self.f

    def check(self, sites: int) -> None:
        f = self.bad(sites)
        if sites < 2 * f + 3:
            raise ConfigError(
                f"multi-krum with f = {f} needs {2 * f + 3} sites, and there are {sites}",
                where="method",
                remedy="lower f, or use the method geometric-median",
            )
        if self.keep > sites - f:
            raise ConfigError(
                f"keep = {self.keep} is more than K - f = {sites - f}",
                where="method",
                remedy=f"set keep to at most {sites - f}, or to 0",
            )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if self.bad(sites) or self.keep not in (0, sites):
            return ""
        return "f = 0 leaves no site out: even weights"

    def scores(self, deltas: Tensor, f: int) -> Tensor:
        """Every model's sum of squared distances to its nearest others, (K,), from <D_j, D_k>."""
        own = deltas.diagonal()
        apart = (own[:, None] + own - 2 * deltas).clamp(min=0).fill_diagonal_(math.inf)
        return apart.sort(dim=1).values[:, : max(1, len(own) - f - 2)].sum(dim=1)

    def aggregate(self, at: Aggregation) -> Model:
        n, f = len(at.p), self.bad(at.federation.K)
        kept = min(self.keep, n) or max(1, n - f)
        nearest = self.scores(at.gram().deltas, f).argsort(stable=True)[:kept]
        return at.weighted(torch.zeros_like(at.p).index_fill(0, nearest, 1 / kept))
