"""FedDisco: sites with unusual class counts weigh less (Ye et al. 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import ConfigError, FederationError
from autofedavg.core.settings import setting
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Training
from autofedavg.federation.port import Federation
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class FedDisco(AveragingMethod):
    """alpha_k ~ relu(p_k - penalty d_k + offset), d_k = KL(classes of k || reference) / sum."""

    name: Literal["feddisco"] = "feddisco"
    about: ClassVar[About] = About(
        family="weights from losses and counts",
        paper="Ye et al. 2023, ICML",
        rule="alpha_k ~ relu(p_k - .5 d_k + .1), d_k the divergence of k's classes, sum_k d_k = 1",
        fedavg="penalty = 0 and offset = 0, and with one site",
        use="classification where sites have very different classes",
        needs="class counts of every site, once; they leave the sites",
        keeps="server K times C numbers",
    )
    penalty: float = setting(
        0.5, origin="derived from the method's code", help="factor on d_k", ge=0, le=1e6
    )
    offset: float = setting(
        0.1, origin="derived from the method's code", help="added to every weight", ge=0, le=1e6
    )
    reference: Literal["uniform", "global"] = setting(
        "uniform",
        origin="derived from the method's code",
        help="classes that a site is compared with: equally many of each, or those of all sites",
    )

    def cautions(self, sites: int) -> list[str]:
        return ["Every site sends its class counts, and must do so before round 1."]

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if self.penalty == self.offset == 0:
            return "penalty and offset are 0: class counts do not count"
        return "one site has all the weight" if sites == 1 else ""

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        return super().asks(t, T, layout) | ({"class_counts": [{}]} if t == 1 else {})

    def begin(self, federation: Federation, start: Round) -> Round:
        return replace(start, memory={"classes": _class_counts(federation)})

    def aggregate(self, at: Aggregation) -> Model:
        if self.penalty == self.offset == 0:
            return at.weighted(at.p)
        far = self._divergences(at.memory["classes"])[at.rows]
        far = far / far.sum() if bool(far.any()) else far
        weights = (at.p - self.penalty * far + self.offset).clamp(min=0)
        return at.weighted(weights / weights.sum() if bool(weights.any()) else at.p)

    def _divergences(self, counts: Tensor) -> Tensor:
        """KL(classes of k || reference), (K,)."""
        own, together = counts / counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
        even = torch.full_like(together, 1 / len(together))
        other = (even if self.reference == "uniform" else together).expand_as(own)
        return torch.where(own > 0, own * (own / other).log(), 0.0).sum(1).clamp(min=0)


def _class_counts(federation: Federation) -> Tensor:
    """Training cases per class of all sites, (K, C).

    Raises:
        ConfigError: a site does not know them, or not for the same classes as the others.
        FederationError: a site did not reply.
    """
    told = federation.class_counts(1)
    for name in federation.names:
        if name not in told:
            raise FederationError(
                "feddisco needs the class counts of every site, and this one did not reply",
                client=name,
                call="class_counts",
                round=1,
                remedy="start when all sites are there, or use another method",
            )
    counts = [told[name] or [] for name in federation.names]
    for name, row in zip(federation.names, counts, strict=True):
        if not sum(row) or len(row) != len(counts[0]):
            known = f"knows {len(row)} classes" if sum(row) else "does not know its class counts"
            raise ConfigError(
                f"feddisco weighs sites by their class counts, and site {name} {known}",
                where="method",
                remedy="use a task whose sites all count the same classes, or another method",
            )
    return torch.tensor(counts, dtype=torch.float64)
