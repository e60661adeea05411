"""Steps of several clients on one beta, without autograd: the host must not keep a GPU waiting.

The same steps as `core.mixture`, in closed form for all clients at once (decisions 37 and 50). For
both constraints d alpha_i / d beta_k = s_k (1[i = k] - alpha_i): s is alpha for the softmax, and
the implicit reparameterisation's factor for a Dirichlet sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from autofedavg.core.constraints import Constraint, Dirichlet, smoothing


class Samples:
    """Samples alpha of gamma(beta), one for each of n steps from the same beta.

    Args:
        beta: where the steps start.
        gamma: from beta to alpha.
        chances: the generator of each sample.

    Attributes:
        alpha: (n, K), or (n, K, P) layer-wise.
    """

    def __init__(self, beta: Tensor, gamma: Constraint, chances: Sequence[torch.Generator]) -> None:
        self._gamma = gamma
        self._theta = gamma.free(beta)
        self._beta = gamma.beta(self._theta)
        if isinstance(gamma, Dirichlet):
            last = gamma.checked(self._beta).movedim(0, -1)
            drawn = torch.stack([torch._sample_dirichlet(last, chance) for chance in chances])
            self.alpha = drawn.movedim(-1, 1)
        else:
            self.alpha = gamma.alpha(self._beta).repeat(len(chances), *[1] * beta.dim())

    @cached_property
    def derivative(self) -> Tensor:
        """Known before the loss is: s times d beta / d theta, shaped as alpha."""
        if not isinstance(self._gamma, Dirichlet):
            return self.alpha
        samples = self.alpha.movedim(1, -1).contiguous()
        betas = self._beta.movedim(0, -1).expand_as(samples)
        total = betas.sum(-1, keepdim=True).expand_as(betas)
        factor = torch._dirichlet_grad(samples, betas, total).movedim(-1, 1)
        if self._gamma.keep_above_one == "floor":
            return factor * (self._theta >= 1 + self._gamma.floor)
        return factor * torch.sigmoid(self._theta)

    def step(self, slopes: Tensor, rate: float, smooth: float) -> Tensor:
        """Theta after each of the steps, against dL/dalpha and the gradient of the smoothing loss.

        Args:
            slopes: dL/dalpha, shaped as alpha.
            rate: the step size.
            smooth: the weight of the smoothing loss, which only layer-wise weights have.
        """
        mean = (self.alpha * slopes).sum(dim=1, keepdim=True)
        slope = self.derivative * (slopes - mean)
        if smooth and slopes.dim() == 3:
            theta = self._theta.clone().requires_grad_()
            loss = smoothing(self._gamma.mean(self._gamma.beta(theta)))
            slope = slope + smooth * torch.autograd.grad(loss, theta)[0]
        return self._theta - rate * slope
