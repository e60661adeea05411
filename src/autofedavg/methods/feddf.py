"""FedDF: the clients' mean prediction teaches their average (Lin et al. 2020)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About
from autofedavg.methods.shared.distillation import Distillation


class FedDF(AveragingMethod):
    """w minimises KL(softmax(mean_k logits of w_k) || softmax(logits of w)), from w_bar on."""

    name: Literal["feddf"] = "feddf"
    needs_proxy: ClassVar[bool] = True
    about: ClassVar[About] = About(
        family="server data",
        paper="Lin et al. 2020, NeurIPS",
        rule="from w_bar, steps on KL(softmax(mean_k logits of w_k) || softmax(logits of w))",
        fedavg="steps = 0",
        use="the server has images like the sites'; they need no labels",
        needs="cases at the server; K predictions of a batch a step",
    )
    steps: int = setting(
        100, origin="ours", help="steps of the student a round; the paper has up to 10,000", ge=0
    )
    rate: float = setting(
        1e-3,
        origin="derived from the method's paper",
        help="first step size of Adam, which falls to 0 like a cosine",
        gt=0,
        allow_inf_nan=False,
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "" if self.steps else "the student takes no step"

    def aggregate(self, at: Aggregation) -> Model:
        if not self.steps:
            return at.mean
        at.alpha = None
        adam = partial(torch.optim.Adam, lr=self.rate)
        how = Distillation(
            self.steps, adam, Tensor.detach, partial(torch.softmax, dim=1), cosine=True
        )
        return how.student(at, [at.w_k[name] for name in at.w_k.sites])[0]
