"""SGD or Adam on one vector: PyTorch's fused kernels, called by its functions.

`torch.optim.Optimizer.step` wraps the same kernel in hooks, a profiler's mark and a look through
groups of parameters: 40 us a step, as much as the kernel itself takes for a small network.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class FlatOptimiser:
    """One vector's optimiser; its numbers are `torch.optim.SGD`'s and `Adam`'s, bit for bit.

    Args:
        kind: which of the two.
        weights: the vector, changed in place.
        gradient: where its gradient is found at every step.
        betas: Adam's decay rates.
        momentum: SGD's.
        weight_decay: the L2 penalty.
        in_place: whether recorded steps use it: its rate and state then stay where they are.
    """

    def __init__(
        self,
        kind: Literal["adam", "sgd"],
        weights: Tensor,
        gradient: Tensor,
        *,
        betas: tuple[float, float],
        momentum: float,
        weight_decay: float,
        in_place: bool = False,
    ) -> None:
        self._kind, self._weights, self._gradient = kind, [weights], [gradient]
        self._betas, self._momentum, self._decay = betas, momentum, weight_decay
        self._place = torch.zeros((), device=weights.device) if in_place else None  # of the rate
        self._rate: float | Tensor = 0.0 if self._place is None else self._place
        self._buffer: list[Tensor | None] = [None]
        self._moments: tuple[list[Tensor], ...] = ()

    def restart(self, rate: float) -> None:
        """A new step size, and no memory of earlier steps."""
        if self._place is None:
            self._rate, self._buffer, self._moments = rate, [None], ()
            return
        self._place.fill_(rate)
        for tensor in self.state():
            tensor.zero_()

    def state(self) -> list[Tensor]:
        """What it remembers of earlier steps."""
        kept = [*self._buffer, *(tensor for moment in self._moments for tensor in moment)]
        return [tensor for tensor in kept if tensor is not None]

    def step(self) -> None:
        """One step against the gradient."""
        if self._kind == "sgd":
            sgd(
                self._weights,
                self._gradient,
                self._buffer,
                foreach=False,
                fused=True,
                weight_decay=self._decay,
                momentum=self._momentum,
                lr=self._rate,  # type: ignore[arg-type]  # the fused kernel also takes a tensor
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            return
        if not self._moments:
            (weights,) = self._weights
            count = torch.zeros((), dtype=torch.float32, device=weights.device)
            self._moments = ([torch.zeros_like(weights)], [torch.zeros_like(weights)], [count])
        first, second, counts = self._moments
        adam(
            self._weights,
            self._gradient,
            first,
            second,
            [],
            counts,
            foreach=False,
            capturable=self._place is not None,
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self._rate,
            weight_decay=self._decay,
            eps=1e-8,
            maximize=False,
        )
