"""A step on beta, whoever takes it: from beta to w, and from grad L(w) back to beta."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Layers, Model
from autofedavg.core.constraints import Constraint, smoothing


class Mixture:
    """W = sum_k alpha_k w_k at one sample alpha of gamma(beta), and the way back to beta.

    dL/dalpha_k = <grad L(w), w_k>, so one forward and one backward of one network give the
    gradient whatever K is (decision 12).
    """

    def __init__(
        self,
        w_k: Bank,
        beta: Tensor,
        gamma: Constraint,
        layers: Layers | None,
        chance: torch.Generator,
    ) -> None:
        self._w_k, self._layers = w_k, layers
        self._samples = Samples(beta, gamma, [chance])
        self.w: Model = w_k.combine(self._samples.alpha[0], layers)

    def step(self, gradient: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after a step against grad L(w) and the gradient of the smoothing loss."""
        slopes = self._w_k.project(gradient, self._layers)
        return self._samples.step(slopes[None], rate, smooth)[0]


class Samples:
    """Samples alpha of gamma(beta), one for each of n steps from the same beta.

    Args:
        beta: where the steps start.
        gamma: from beta to alpha.
        chances: what each sample is drawn with.

    Attributes:
        alpha: (n, K), or (n, K, P) layer-wise.
    """

    def __init__(self, beta: Tensor, gamma: Constraint, chances: Sequence[torch.Generator]) -> None:
        self._gamma = gamma
        self._theta = gamma.free(beta)
        self._beta = gamma.beta(self._theta)
        self.alpha = gamma.sample(self._beta, chances)

    @cached_property
    def way_back(self) -> Tensor:
        """From alpha to theta, but for what the loss says; all that can be known before it."""
        return self._gamma.sensitivity(self._beta, self.alpha) * self._gamma.bend(self._theta)

    def step(self, slopes: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after each of the steps, against dL/dalpha and the gradient of the smoothing loss.

        Args:
            slopes: dL/dalpha, shaped as alpha.
            rate: the step size.
            smooth: the weight of the smoothing loss, which only layer-wise weights have.
        """
        mean = (self.alpha * slopes).sum(dim=1, keepdim=True)
        slope = self.way_back * (slopes - mean)
        if slopes.dim() == 3 and smooth:
            slope = slope + smooth * self._roughness()
        return self._theta - rate * slope

    def _roughness(self) -> Tensor:
        """The gradient of the smoothing loss, the same for all steps."""
        theta = self._theta.clone().requires_grad_()
        loss = smoothing(self._gamma.mean(self._gamma.beta(theta)))
        (slope,) = torch.autograd.grad(loss, theta)
        return slope
