"""FedPIDAvg: sizes, the last fall of the loss, and its recent sum (Maechler et al. 2022)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About
from autofedavg.methods.shared.losses import remembered


class FedPIDAvg(AveragingMethod):
    """alpha_k = .45 p_k + .45 d_k / sum_j d_j + .1 m_k / sum_j m_j.

    d_k = max(0, L_k^{t-1} - L_k^t), and m_k sums k's latest losses. Round 1 is FedAvg. Where no
    loss has fallen, sizes take that part.
    """

    name: Literal["fedpidavg"] = "fedpidavg"
    needs_losses: ClassVar[bool] = True
    about: ClassVar[About] = About(
        family="weights from losses and counts",
        paper="Maechler et al. 2022, FeTS challenge, arXiv 2304.12117",
        rule="alpha_k = .45 p_k + .45 d_k / sum d + .1 m_k / sum m, d the loss's fall, m its sum",
        fedavg="difference = 0 and integral = 0, in round 1, and with one site",
        use="medical segmentation with sites of very different sizes",
        needs="a training loss that is never negative",
        keeps="server K times window numbers",
    )
    difference: float = setting(
        0.45,
        origin="derived from the method's paper",
        help="part of the weights that follows the fall of the loss; sizes take what is left",
        ge=0,
        le=1,
    )
    integral: float = setting(
        0.1,
        origin="derived from the method's paper",
        help="part of the weights that follows the sum of the latest losses",
        ge=0,
        le=1,
    )
    window: int = setting(
        6, origin="derived from the method's paper", help="losses in that sum", ge=1
    )

    @model_validator(mode="after")
    def _leaves_no_less_than_nothing(self) -> FedPIDAvg:
        if self.difference + self.integral > 1:
            raise ValueError("difference and integral must not sum to more than 1")
        return self

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if self.difference == self.integral == 0:
            return "difference and integral are 0: losses do not count"
        return "one site has all the weight" if sites == 1 else ""

    def aggregate(self, at: Aggregation) -> Model:
        now, earlier = remembered(at, max(1, self.window - 1))
        if bool(earlier[:, 0].isnan().all()):
            return at.weighted(at.p)
        fall = (earlier[:, 0] - now).clamp(min=0).nan_to_num(0.0)
        # The mean is the sum where all have equally many losses, and fair where they have not.
        recent = torch.cat([now[:, None], earlier], dim=1)[:, : self.window].nanmean(dim=1)
        size = 1 - self.difference - self.integral
        weights = size * at.p + self.difference * _shares(fall, at.p)
        return at.weighted(weights + self.integral * recent / recent.sum())


def _shares(v: Tensor, otherwise: Tensor) -> Tensor:
    return v / v.sum() if bool(v.any()) else otherwise
