"""How the server turns the clients' stepped beta into the next beta.

`sgd` is Algorithm 1 to the letter: each client takes a gradient step, the server averages. `adam`
holds Adam at the server: clients take a unit step, so what they moved by on average is the mean
gradient. Either starts afresh at every LearnAggWeight, so a run's state is w and beta alone
(decision 4).

With several steps a message the same two are used by a client on its own steps, afresh in every
message, and the server averages (decision 33).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]
EPSILON = 1e-8  # PyTorch's default


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
        return _Adam(self.rate, *self.betas)


class _Adam:
    """As `torch.optim.Adam`, whose general way takes several times as long for K numbers."""

    def __init__(self, rate: float, beta1: float, beta2: float) -> None:
        self._rate, self._beta1, self._beta2 = rate, beta1, beta2
        self._steps, self._mean, self._square = 0, torch.zeros(()), torch.zeros(())

    def __call__(self, theta: Tensor, average: Tensor) -> Tensor:
        gradient = theta - average
        if not self._steps:
            self._mean, self._square = torch.zeros_like(theta), torch.zeros_like(theta)
        self._steps += 1
        self._mean.lerp_(gradient, 1 - self._beta1)
        self._square.mul_(self._beta2).addcmul_(gradient, gradient, value=1 - self._beta2)
        size = self._rate / (1 - self._beta1**self._steps)
        spread = self._square.sqrt().div_((1 - self._beta2**self._steps) ** 0.5).add_(EPSILON)
        return torch.addcdiv(theta, self._mean, spread, value=-size)
