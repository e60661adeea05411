"""How the server turns the clients' stepped beta into the next beta.

`sgd` is Algorithm 1 to the letter: each client takes a gradient step, the server averages. `adam`
holds Adam at the server: clients take a unit step, so what they moved by on average is the mean
gradient. Either starts afresh at every LearnAggWeight, so a run's state is w and beta alone
(decision 4).

Blind learning keeps Adam's moments from call to call, at each site (decision 62).

With several steps a message the same two are used by a client on its own steps, afresh in every
message, and the server averages (decision 33).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class BetaOptimiser:
    """Adam on the mean gradient at the server, or plain averaging of the clients' own steps."""

    kind: Literal["adam", "sgd"]
    rate: float
    betas: tuple[float, float] = (0.5, 0.999)

    @property
    def client_rate(self) -> float:
        """The step size of the clients' gradient step."""
        return self.rate if self.kind == "sgd" else 1.0

    def note(self) -> dict[str, Any]:
        """Plain values from which a client rebuilds this object."""
        return asdict(self) | {"betas": list(self.betas)}

    def start(self) -> Step:
        """A fresh step function (theta, mean over k of theta^{s,k}) -> next theta."""
        if self.kind == "sgd":
            return lambda _theta, average: average
        return self._adam()

    def step_from(
        self, theta: Tensor, slope: Tensor, moments: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step along a slope, and the moments to continue from; none at first."""
        if self.kind == "sgd":
            return theta - self.rate * slope, {}
        kept = {name: value.clone() for name, value in moments.items()} or {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.zeros_like(theta),
            "exp_avg_sq": torch.zeros_like(theta),
        }
        stepped = theta.detach().clone()
        # The class `Adam` calls this function, and imports PyTorch's compiler first: two seconds.
        with torch.no_grad():
            adam(
                [stepped],
                [slope],
                [kept["exp_avg"]],
                [kept["exp_avg_sq"]],
                [],
                [kept["step"]],
                foreach=False,
                fused=False,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=self.rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )
        return stepped, kept

    def _adam(self) -> Step:
        moments: dict[str, Tensor] = {}

        def step(theta: Tensor, average: Tensor) -> Tensor:
            nonlocal moments
            theta, moments = self.step_from(theta, theta - average, moments)
            return theta

        return step
