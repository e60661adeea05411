"""A step on beta: from beta to a mixture w of the models, and from grad L(w) back to beta."""

from __future__ import annotations

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Layers, Layout, Model
from autofedavg.core.constraints import Constraint, constraint, smoothing
from autofedavg.core.site import Facts


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

    @classmethod
    def asked(cls, w_k: Bank, beta: Tensor, how: Facts, layout: Layout, seed: int) -> Mixture:
        """The mixture of a request to step on beta."""
        layers = layout.layers(how["layers"]) if how["layers"] else None
        chance = torch.Generator().manual_seed(seed)
        return cls(w_k, beta, constraint(how["gamma"]), layers, chance)

    def step(self, gradient: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after a step against grad L(w) and the gradient of the smoothing loss."""
        return self.moved(self.slope(gradient), rate, smooth)

    def slope(self, gradient: Tensor) -> Tensor:
        """dL/dtheta, of theta's shape, from grad L(w)."""
        slopes = self._w_k.project(gradient, self._layers)
        return torch.autograd.grad(self._alpha, self._theta, slopes, retain_graph=True)[0]

    def moved(self, slope: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after a step against dL/dtheta and the gradient of the smoothing loss."""
        theta = self._theta
        if smooth and self._layers is not None:
            roughness = smoothing(self._gamma.mean(self._gamma.beta(theta)))
            slope = slope + smooth * torch.autograd.grad(roughness, theta)[0]
        return theta.detach() - rate * slope
