"""FedBE: models drawn around the clients' teach their average (Chen and Chao 2021)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.problem import SERVER
from autofedavg.core.seeds import Purpose
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About
from autofedavg.methods.shared.distillation import Distillation

CODE = "derived from the method's code"
LEAST = 1e-5  # variance of a direction over the clients


class FedBE(AveragingMethod):
    """The mean prediction of drawn models, w_bar and the w_k, sharpened, teaches w_bar."""

    name: Literal["fedbe"] = "fedbe"
    needs_proxy: ClassVar[bool] = True
    about: ClassVar[About] = About(
        family="server data",
        paper="Chen and Chao 2021, ICLR",
        rule="from w_bar, steps towards the sharpened mean prediction of drawn models, w_bar, w_k",
        fedavg="steps = 0",
        use="as FedDF, where a mean of few clients' predictions is too rough",
        needs="cases at the server; K + samples + 1 predictions of a batch a step",
    )
    steps: int = setting(
        100, origin="ours", help="steps of the student a round; the code has 20 epochs", ge=0
    )
    rate: float = setting(
        1e-3, origin=CODE, help="step size of SGD at the server", gt=0, allow_inf_nan=False
    )
    momentum: float = setting(0.9, origin=CODE, help="momentum of SGD at the server", ge=0, lt=1)
    weight_decay: float = setting(1e-5, origin=CODE, help="L2 penalty of the student", ge=0)
    samples: int = setting(10, origin=CODE, help="models that are drawn a round", ge=0)
    noise: float = setting(
        0.1, origin=CODE, help="factor on the drawn models' spread", ge=0, allow_inf_nan=False
    )
    temperature: float = setting(
        0.5, origin=CODE, help="of the mean prediction; below 1 sharpens it", gt=0, le=1
    )
    average_after: int = setting(
        lambda known: known.get("steps", 0) // 3,
        origin="ours: a third of the steps; the code has 500",
        help="steps before students are averaged",
        ge=0,
    )
    average_every: int = setting(
        5, origin="ours: the code has 25", help="steps between averaged students", ge=1
    )

    @model_validator(mode="after")
    def _averages_some(self) -> FedBE:
        if self.steps and self.average_after + self.average_every > self.steps:
            raise ValueError("average_after + average_every must be at most steps")
        return self

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "" if self.steps else "the student takes no step"

    def drawn(self, at: Aggregation) -> list[Model]:
        """Models w + m (mean + noise sd N(0, 1)), tensor by tensor.

        Mean and sd are those of the directions Delta_k / ||Delta_k|| over the clients, m is the
        mean of ||Delta_k||. Buffers are those of w_bar.
        """
        end = at.layout.trainable
        w = at.w.values[:end].to(at.w_k.values)
        middle, spread = w.clone(), torch.zeros_like(w)
        for entry in (entry for entry in at.layout.entries if entry.stop <= end):
            part = slice(entry.start, entry.stop)
            moved = at.w_k.values[:, part] - w[part]
            lengths = torch.linalg.vector_norm(moved, dim=1)
            turned = moved / lengths.clamp(min=torch.finfo(w.dtype).tiny)[:, None]
            middle[part] += lengths.mean() * turned.mean(dim=0)
            variance = turned.var(dim=0, unbiased=False).clamp(min=LEAST)
            spread[part] = lengths.mean() * variance.sqrt()
        drawn = []
        for s in range(1, self.samples + 1):
            chance = at.federation.seeds.generator(SERVER, Purpose.DISTILLATION, at.t, s)
            normal = torch.randn(end, generator=chance, dtype=w.dtype).to(w.device)
            drawn.append(at.trained_part(middle + self.noise * spread * normal))
        return drawn

    def aggregate(self, at: Aggregation) -> Model:
        if not self.steps:
            return at.mean
        at.alpha = None
        decay, softmax = self.weight_decay, partial(torch.softmax, dim=1)
        sgd = partial(torch.optim.SGD, lr=self.rate, momentum=self.momentum, weight_decay=decay)

        def sharpened(mean: Tensor) -> Tensor:
            found = mean ** (1 / self.temperature)
            return found / found.sum(dim=1, keepdim=True)

        averaged = range(self.average_after, self.steps + 1, self.average_every)[1:]
        how = Distillation(self.steps, sgd, softmax, sharpened, averaged=averaged)
        clients = [at.w_k[name] for name in at.w_k.sites]
        return how.student(at, [*self.drawn(at), at.mean, *clients])[0]
