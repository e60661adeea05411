"""A step on beta: from beta to a mixture w of the models, and from grad L(w) back to beta."""

from __future__ import annotations

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Layers, Model
from autofedavg.core.constraints import Constraint, smoothing


class Mixture:
    """W = sum_k alpha_k w_k at one sample alpha of gamma(beta), and the way back to beta.

    dL/dalpha_k = <grad L(w), w_k>, so one forward and one backward pass of one network give the
    gradient for any K (decision 12). The rest is autograd on K numbers.
    """

    def __init__(
        self,
        w_k: Bank,
        beta: Tensor,
        gamma: Constraint,
        layers: Layers | None,
        chance: torch.Generator,
    ) -> None:
        self._w_k, self._gamma, self._layers = w_k, gamma, layers
        self._theta = gamma.free(beta).requires_grad_()
        self._alpha = gamma.sample(gamma.beta(self._theta), chance)
        self.w: Model = w_k.combine(self._alpha, layers)

    def step(self, gradient: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after a step against grad L(w) and the gradient of the smoothing loss."""
        theta, slopes = self._theta, self._w_k.project(gradient, self._layers)
        (slope,) = torch.autograd.grad(self._alpha, theta, slopes, retain_graph=True)
        if smooth and self._layers is not None:
            roughness = smoothing(self._gamma.mean(self._gamma.beta(theta)))
            slope = slope + smooth * torch.autograd.grad(roughness, theta)[0]
        return theta.detach() - rate * slope
