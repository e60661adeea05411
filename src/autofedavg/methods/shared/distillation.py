"""Distillation at the server: a student learns what teachers predict on the server's data.

The student's batch normalisation keeps the statistics that it starts with, the sites' averaged
ones: the server's images do not move them, and a student whose teachers agree with it stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from autofedavg.core.bank import Model
from autofedavg.core.errors import Diverged, TrainingError
from autofedavg.core.problem import SERVER
from autofedavg.core.seeds import Purpose, every_state_kept, global_seed
from autofedavg.federation.proxy import Proxy
from autofedavg.methods.averaging import Aggregation


@dataclass(frozen=True)
class Distillation:
    """How a student learns.

    Attributes:
        steps: of the student, one batch each.
        optimiser: makes the optimiser of a list of tensors.
        each: of every teacher's logits (B, C, ...), what is averaged.
        then: of that mean, the target: class probabilities (B, C, ...).
        cosine: whether the step size falls to 0 like a cosine.
        averaged: steps after which a student is averaged, in order; the last student if empty.
    """

    steps: int
    optimiser: Callable[[Iterable[Tensor]], Optimizer]
    each: Callable[[Tensor], Tensor]
    then: Callable[[Tensor], Tensor]
    cosine: bool = False
    averaged: Sequence[int] = ()

    def student(self, at: Aggregation, teachers: Sequence[Model]) -> tuple[Model, list[float]]:
        """The student that starts from w_bar, and the divergence before each of its steps."""
        proxy, start = proxy_of(at), at.mean
        seed = at.federation.seeds.number(SERVER, Purpose.DISTILLATION, at.t)
        student = Model(start.values.clone(), start.counters)
        weights = student.values[: at.layout.trainable]
        optimiser = self.optimiser([weights])
        rates = [group["lr"] for group in optimiser.param_groups]
        mean, losses = torch.zeros_like(weights), []
        with every_state_kept(), global_seed(seed, weights.device):
            for step, batch in enumerate(proxy.batches(at.t, self.steps)):
                seen = sum((self.each(proxy.logits(w, batch)) for w in teachers), torch.zeros(()))
                target = self.then(seen / len(teachers))
                weights.grad, loss = proxy.divergence(student, batch, target)
                for group, rate in zip(optimiser.param_groups, rates, strict=True):
                    fallen = (1 + math.cos(math.pi * step / self.steps)) / 2
                    group["lr"] = rate * fallen if self.cosine else rate
                optimiser.step()
                losses.append(loss)
                if step + 1 in self.averaged:
                    mean += (weights - mean) / (self.averaged.index(step + 1) + 1)
        found = mean if self.averaged else weights
        if not bool(torch.isfinite(found).all()):
            raise Diverged(
                "the student's numbers are not finite",
                where=f"server, distillation of round {at.t}",
                remedy="lower method.rate, or look at the server's images",
            )
        return at.trained_part(found), torch.stack(losses).tolist()


def proxy_of(at: Aggregation) -> Proxy:
    """The server's data; `check_run` has refused a run without."""
    if at.federation.proxy is None:
        raise TrainingError(
            "there is no data at the server",
            where=f"server, round {at.t}",
            remedy="set task.proxy, or give federate(proxy=)",
        )
    return at.federation.proxy
