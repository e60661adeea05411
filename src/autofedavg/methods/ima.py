"""IMA: from some round on, the mean of the last aggregates (Zhou et al. 2023)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class IMA(AveragingMethod):
    """From round start T, w is the mean of the last `window` FedAvg aggregates.

    Clients start from that mean; the aggregates themselves are kept in memory. The paper also makes
    the step size fall faster from then on, which is for `training` to say.
    """

    name: Literal["ima"] = "ima"
    about: ClassVar[About] = About(
        family="server step",
        paper="Zhou et al. 2023, arXiv 2305.07845",
        rule="from round start T: w = mean of the last `window` aggregates sum_k p_k w_k",
        fedavg="window = 1",
        use="the global model jumps from round to round late in training",
        keeps="server `window`",
    )
    start: float = setting(
        0.75,
        origin="derived from the method's paper",
        help="averages from round start T",
        ge=0,
        le=1,
    )
    window: int = setting(
        5, origin="derived from the method's paper", help="aggregates in the mean", ge=1
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "the mean of one aggregate is FedAvg" if self.window == 1 else ""

    def aggregate(self, at: Aggregation) -> Model:
        first = self.start * at.T
        if self.window == 1 or at.t <= first - self.window:  # not in any mean
            return at.mean
        at.memory[f"aggregate{at.t % self.window}"] = at.mean.values.clone()
        if at.t < first:
            return at.mean
        slots = (at.memory.get(f"aggregate{slot}") for slot in range(self.window))
        held = [values.to(at.mean.values) for values in slots if values is not None]
        return Model(torch.stack(held).mean(dim=0), at.mean.counters, at.mean.form)
