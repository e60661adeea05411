"""GA: sites that the average serves worse than their own model weigh more (Zhang et al. 2023)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About, even_weights
from autofedavg.methods.shared.simplex import present, replaced, shares


class GeneralizationAdjustment(AveragingMethod):
    """G_k = score of w_k at k - score of w at k; a_k = a_k + (s_t / K) G_k / max_j abs(G_j).

    The weights are clipped to 0 .. 1, divided by their sum, and used in the next round. Scores are
    the study's metric on validation cases; s_t = step (1 - t/T).
    """

    name: Literal["ga"] = "ga"
    about: ClassVar[About] = About(
        family="weights from losses and counts",
        paper="Zhang et al. 2023, CVPR",
        rule="a_k = clip(a_k + (s_t / K) G_k / max |G|), G_k = score of w_k at k - score of w at k",
        fedavg="step = 0, in round 1 (even weights), and with one site",
        use="sites differ, and the global model should serve the worst of them better",
        needs="validation cases at every site",
        keeps="server K numbers",
    )
    step: float = setting(
        0.2,
        origin="derived from the method's paper",
        help="s_0; falls linearly to 0 in the last round",
        ge=0,
        le=1,
    )

    @property
    def learns_on(self) -> str:
        return "validation"

    def cautions(self, sites: int) -> list[str]:
        return ["A site whose validation labels are wrong gains weight."]

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if self.step == 0:
            return "step is 0: the weights stay even"
        return "one site has all the weight" if sites == 1 else ""

    def aggregate(self, at: Aggregation) -> Model:
        weights = at.memory.setdefault("weights", even_weights(at.federation))
        return at.weighted(present(weights, at.rows))

    def after(self, at: Aggregation, w: Model) -> None:
        scores, own = at.federation.validated(at.t, w, at.w_k)
        names = [name for name in at.w_k.sites if name in scores and name in own]
        gap = torch.tensor([own[name] - scores[name] for name in names], dtype=torch.float64)
        step = self.step * (1 - at.t / at.T)
        if step == 0 or not bool(gap.any()):
            return
        weights, rows = at.memory["weights"], torch.tensor(at.federation.rows(names))
        moved = present(weights, rows) + step / len(names) * gap / gap.abs().max()
        at.memory["weights"] = replaced(weights, rows, shares(moved.clamp(0, 1)))
