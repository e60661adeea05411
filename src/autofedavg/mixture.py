"""A step on beta, whoever takes it: from beta to w, and from grad L(w) back to beta."""

from __future__ import annotations

import torch
from torch import Tensor

from autofedavg.averaging import Bank, Layers, Model
from autofedavg.constraints import Constraint, smoothing


class Mixture:
    """W = sum_k alpha_k w_k at one sample alpha of gamma(beta), and the way back to beta.

    dL/dalpha_k = <grad L(w), w_k>, so one forward and one backward of one network give the
    gradient whatever K is (decision 12); gamma's own derivative is left to autograd.
    """

    def __init__(
        self, w_k: Bank, beta: Tensor, gamma: Constraint, layers: Layers | None, seed: int
    ) -> None:
        self._w_k, self._gamma, self._layers = w_k, gamma, layers
        self._theta = gamma.free(beta).requires_grad_()
        self._alpha = gamma.sample(gamma.beta(self._theta), seed)
        self.w: Model = w_k.combine(self._alpha, layers)

    def step(self, gradient: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after a step against grad L(w) and the gradient of the smoothing loss."""
        objective = (self._alpha * self._w_k.project(gradient, self._layers)).sum()
        if self._layers is not None and smooth:
            mean = self._gamma.mean(self._gamma.beta(self._theta))
            objective = objective + smooth * smoothing(mean)
        # The way from theta to alpha is walked back once per client at the server.
        (slope,) = torch.autograd.grad(objective, self._theta, retain_graph=True)
        return self._theta.detach() - rate * slope
