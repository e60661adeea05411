"""The constants of Algorithm 1, and what of them a client is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from autofedavg.core.bank import LayerKind, Layers
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Constraint
from autofedavg.core.site import Facts, Site


@dataclass(frozen=True)
class Plan:
    """The constants of Algorithm 1; `layers` is given for layer-wise weights.

    `steps_per_message` (decision 33) and `learning` (decision 34) are 1 and "clients" in the paper;
    `trainable` is the length of a gradient, for learning at the server; `by_size` (decision 40) is
    False in the paper, and `clip` (decision 45) 0.
    """

    T: int
    t0: int
    S: int
    gamma: Constraint
    optimiser: BetaOptimiser
    layers: Layers | None = None
    layer_kind: LayerKind = "module"
    reinitialise: bool = False
    smoothing: float = 0.0
    data: Literal["validation", "train", "holdout"] = "validation"
    mode: Literal["eval", "train"] = "eval"
    steps_per_message: int = 1
    learning: Literal["clients", "server"] = "clients"
    trainable: int = 0
    by_size: bool = False
    clip: float = 0.0

    def for_clients(self) -> Facts:
        """What a client must know to take a step on beta."""
        facts = {"gamma": self.gamma.note(), "rate": self.optimiser.client_rate}
        facts |= {"layers": self.layer_kind if self.layers else None, "mode": self.mode}
        return facts | {"smoothing": self.smoothing, "data": self.data}

    def for_gradients(self) -> Facts:
        """What `Federation.differentiate` must know."""
        return {"length": self.trainable, "data": self.data, "mode": self.mode}

    def messages(self) -> Iterator[tuple[int, Facts]]:
        """The first step of every message to the clients, and what it says beside beta."""
        m = self.steps_per_message
        for s in range(1, self.S + 1, m):
            alone = {"steps": min(m, self.S - s + 1), "optimiser": self.optimiser.note()}
            yield s, self.for_clients() | (alone if m > 1 else {})

    def server_optimiser(self) -> BetaOptimiser:
        """What turns the mean of the clients' theta into the next: several steps are averaged."""
        if self.steps_per_message == 1:
            return self.optimiser
        return replace(self.optimiser, kind="sgd")

    def average(self, theta_k: Mapping[str, Tensor], sites: Sequence[Site]) -> Tensor:
        """The mean of the clients' theta: of the paper, or every client by its training cases."""
        thetas = torch.stack(list(theta_k.values()))
        if not self.by_size:
            return thetas.mean(dim=0)
        n_k = {site.name: site.cases["train"] for site in sites}
        n = torch.tensor([n_k[name] for name in theta_k], dtype=thetas.dtype)
        average: Tensor = torch.tensordot(n / n.sum(), thetas, dims=1)
        return average
