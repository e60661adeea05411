"""A step on beta, whoever takes it: from beta to w, and from grad L(w) back to beta."""

from __future__ import annotations

from collections.abc import Sequence

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
        self._w_k, self._layers = w_k, layers
        self._samples = Samples(beta, gamma, [seed])
        self.w: Model = w_k.combine(self._samples.alpha[0], layers)

    def step(self, gradient: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after a step against grad L(w) and the gradient of the smoothing loss."""
        slopes = self._w_k.project(gradient, self._layers)
        return self._samples.step(slopes[None], rate, smooth)[0]


class Samples:
    """Samples alpha of gamma(beta), one for each of n steps from the same beta.

    Attributes:
        alpha: (n, K), or (n, K, P) layer-wise.
    """

    def __init__(self, beta: Tensor, gamma: Constraint, seeds: Sequence[int]) -> None:
        self._gamma = gamma
        self._theta = gamma.free(beta).repeat(len(seeds), *[1] * beta.dim()).requires_grad_()
        self._beta = gamma.beta(self._theta)
        self._alpha = gamma.samples(self._beta, seeds)
        self.alpha = self._alpha.detach()

    def step(self, slopes: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after each of the steps, against dL/dalpha and the gradient of the smoothing loss.

        Args:
            slopes: dL/dalpha, shaped as alpha.
            rate: the step size.
            smooth: the weight of the smoothing loss, which only layer-wise weights have.
        """
        outputs, slope_of = [self._alpha], [slopes]
        if slopes.dim() == 3 and smooth:
            means = [self._gamma.mean(beta) for beta in self._beta]
            outputs.append(smooth * torch.stack([smoothing(m) for m in means]).sum())
            slope_of.append(torch.ones((), dtype=slopes.dtype))
        # The way from theta to alpha is walked back once per client at the server.
        (slope,) = torch.autograd.grad(outputs, self._theta, slope_of, retain_graph=True)
        return self._theta.detach() - rate * slope
