"""FedCostWAvg: sites whose training loss falls faster weigh more (Maechler et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About
from autofedavg.methods.shared.losses import remembered


class FedCostWAvg(AveragingMethod):
    """alpha_k = size_share p_k + (1 - size_share) r_k / sum_j r_j, r_k = L_k^{t-1} / L_k^t.

    Round 1 is FedAvg. A client without an earlier loss has r_k = 1.
    """

    name: Literal["fedcostwavg"] = "fedcostwavg"
    needs_losses: ClassVar[bool] = True
    about: ClassVar[About] = About(
        family="weights from losses and counts",
        paper="Maechler et al. 2021, FeTS challenge, arXiv 2111.08649",
        rule="alpha_k = p_k / 2 + r_k / (2 sum_j r_j), r_k = L_k^{t-1} / L_k^t",
        fedavg="size_share = 1, in round 1, and with one site",
        use="medical segmentation with sites of very different sizes",
        needs="a training loss that is never negative",
        keeps="server K numbers",
    )
    size_share: float = setting(
        0.5,
        origin="derived from the method's paper",
        help="part of the weights that follows the sizes n_k/n; the rest follows the losses",
        ge=0,
        le=1,
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if self.size_share == 1:
            return "size_share is 1: losses do not count"
        return "one site has all the weight" if sites == 1 else ""

    def aggregate(self, at: Aggregation) -> Model:
        now, earlier = remembered(at, 1)
        before = earlier[:, 0]
        if bool(before.isnan().all()):
            return at.weighted(at.p)
        fall = (before / now).nan_to_num(1.0)
        return at.weighted(self.size_share * at.p + (1 - self.size_share) * fall / fall.sum())
