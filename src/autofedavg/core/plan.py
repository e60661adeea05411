"""The constants of Algorithm 1, and those of them that a client is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Layers
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.call_schedule import BATCHES, EveryT0, LearningRounds
from autofedavg.core.constraints import Constraint, moved_to
from autofedavg.core.layout import Split
from autofedavg.core.site import Facts, Site

Update = Callable[[int, Tensor], Mapping[str, Tensor]]  # (s, beta^{s-1}) -> theta^{s,k} by client
Learner = Callable[[Any, "Plan", int, Bank], Update]  # of a federation, the plan, t and w_1 .. w_K
# Of a federation, the plan and the memory of an earlier round.
Judge = Callable[[Any, "Plan", Mapping[str, Tensor]], LearningRounds]


@dataclass(frozen=True)
class Plan:
    """The constants of Algorithm 1; the last eight are ours, and their defaults are the paper's.

    Attributes:
        layers: for layer-wise weights.
        steps_per_message: steps a client takes by itself before the server averages (decision 33).
        learner: who takes the steps on beta; None for the clients (decision 34).
        trainable: length of a gradient, for learning at the server.
        by_size: whether clients count by their training cases (decision 40).
        clip: limit on a client's step, in medians of the others'; 0 for none (decision 45).
        judge: decides which rounds call LearnAggWeight; None for every t0-th (decision 63).
        to_sizes: whether weights become n_k/n where learned ones are no better (decision 63).
        from_sizes: whether weights start at n_k/n instead of 1/K (decision 62).
    """

    T: int
    t0: int
    S: int
    gamma: Constraint
    optimiser: BetaOptimiser
    layers: Layers | None = None
    layer_kind: Split = "module"
    reinitialise: bool = False
    smoothing: float = 0.0
    data: Literal["validation", "train", "holdout"] = "validation"
    mode: Literal["eval", "train"] = "eval"
    steps_per_message: int = 1
    learner: Learner | None = None
    trainable: int = 0
    by_size: bool = False
    clip: float = 0.0
    judge: Judge | None = None
    to_sizes: bool = False
    from_sizes: bool = False

    @property
    def steps(self) -> range:
        """The first step s of every message to the clients."""
        return range(1, self.S + 1, self.steps_per_message)

    def calls(self, federation: Any, memory: Mapping[str, Tensor]) -> LearningRounds:
        """The rounds that call LearnAggWeight, after a round with this memory."""
        return self.judge(federation, self, memory) if self.judge else EveryT0(self.t0)

    def initial(self, sites: Sequence[Site]) -> Tensor:
        """beta^0: equal for all clients, or with the weights n_k/n."""
        beta = self.gamma.initial(len(sites), self.layers.P if self.layers else None)
        if not self.from_sizes:
            return beta
        alpha = size_shares([site.name for site in sites], sites)
        alpha = alpha if beta.dim() == 1 else alpha[:, None].expand_as(beta)
        return moved_to(alpha, self.gamma, beta)

    def message(self, s: int) -> Facts:
        """What a client must know, besides beta, to take step s and the others of its message."""
        facts = {"gamma": self.gamma.note(), "rate": self.optimiser.client_rate}
        facts |= {"layers": self.layer_kind if self.layers else None, "mode": self.mode}
        facts |= {"smoothing": self.smoothing, "data": self.data}
        if self.steps_per_message > 1:
            facts["steps"] = min(self.steps_per_message, self.S - s + 1)
            facts["optimiser"] = self.optimiser.note()
        return facts

    def asks(self) -> dict[str, list[Facts]]:
        """What a LearnAggWeight call asks of a client: by call, the values of its messages."""
        judged = [self.judged_on()] if self.judge else []
        if self.learner is None:
            steps = [{"s": s, **self.message(s)} for s in self.steps]
            return {"share_models": [{}], "update_beta": steps, "mixture_losses": judged}
        how = {"data": self.data, "mode": self.mode}
        mixtures = 3 if self.to_sizes else 2
        return {
            "differentiate": [{"s": s, **how} for s in self.steps],
            "model_losses": judged * mixtures,
        }

    def judged_on(self) -> Facts:
        """What a client must know to say the losses that a call is judged by.

        The batches are those of steps after S: no step on beta was taken on them.
        """
        batches: Facts = {"s": self.S + 1, "steps": BATCHES, "data": self.data}
        if self.learner is None:
            batches["layers"] = self.layer_kind if self.layers else None
        return batches

    def server_optimiser(self) -> BetaOptimiser:
        """Turns the clients' mean theta into the next one: several steps are only averaged."""
        if self.steps_per_message == 1:
            return self.optimiser
        return replace(self.optimiser, kind="sgd")

    def average(self, theta_k: Mapping[str, Tensor], sites: Sequence[Site]) -> Tensor:
        """The mean of the clients' theta: the paper's, or weighted by their training cases."""
        thetas = torch.stack(list(theta_k.values()))
        if not self.by_size:
            return thetas.mean(dim=0)
        average: Tensor = torch.tensordot(self.shares(list(theta_k), sites), thetas, dims=1)
        return average

    def shares(self, names: Sequence[str], sites: Sequence[Site]) -> Tensor:
        """How much each of these clients counts in the objective: evenly, or by its cases."""
        if not self.by_size:
            return torch.full((len(names),), 1 / len(names), dtype=torch.float64)
        return size_shares(names, sites)


def size_shares(names: Sequence[str], sites: Sequence[Site]) -> Tensor:
    """n_k/n of these clients, n_k being training cases (decision 8)."""
    n_k = {site.name: site.cases["train"] for site in sites}
    n = torch.tensor([n_k[name] for name in names], dtype=torch.float64)
    return n / n.sum()
