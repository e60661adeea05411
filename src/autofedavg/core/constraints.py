"""gamma: how free numbers beta become aggregation weights alpha on the simplex (Eq. 3).

beta and alpha have shape (K,) for network-wise weights or (K, P) for layer-wise ones; clients are
always the first dimension. Everything here is float64 on the CPU (decision 2).

theta is what gradient steps are taken in. For the softmax and for the Dirichlet with a floor it is
beta itself, so averaging theta over clients is the paper's averaging of beta; with `softplus`,
beta = 1 + floor + softplus(theta).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import drawing_from


class Constraint(Protocol):
    """What Algorithm 1 needs of gamma."""

    @property
    def name(self) -> str:
        """As `constraint` knows it; in a study "softmax" or "dirichlet"."""

    def initial(self, K: int, P: int | None = None) -> Tensor:
        """beta^0, equal for all clients: (K,), or (K, P) when P is given."""

    def alpha(self, beta: Tensor) -> Tensor:
        """The weights used for aggregation: Eq. 4, or the mode of Eq. 6."""

    def sample(self, beta: Tensor, chance: torch.Generator) -> Tensor:
        """The weights used for a learning step, shaped as beta; differentiable in beta."""

    def mean(self, beta: Tensor) -> Tensor:
        """The expected weights, for the layer-wise smoothing loss; differentiable in beta."""

    def free(self, beta: Tensor) -> Tensor:
        """Theta of beta."""

    def beta(self, theta: Tensor) -> Tensor:
        """Beta of theta, kept legal; differentiable."""

    def note(self) -> dict[str, Any]:
        """Plain values from which `constraint` rebuilds this object at a client."""


@dataclass(frozen=True)
class Softmax:
    """Eq. 4: alpha_k = exp(beta_k) / sum_i exp(beta_i).

    Example:
        >>> Softmax().alpha(Softmax().initial(2)).tolist()
        [0.5, 0.5]
    """

    beta0: float = 0.0
    name: str = "softmax"

    def initial(self, K: int, P: int | None = None) -> Tensor:
        return _constant(self.beta0, K, P)

    def alpha(self, beta: Tensor) -> Tensor:
        return torch.softmax(beta, dim=0)

    def sample(self, beta: Tensor, chance: torch.Generator) -> Tensor:
        return _Softmax.apply(beta)  # type: ignore[no-any-return, no-untyped-call]

    def mean(self, beta: Tensor) -> Tensor:
        return self.alpha(beta)

    def free(self, beta: Tensor) -> Tensor:
        return beta.clone()

    def beta(self, theta: Tensor) -> Tensor:
        return theta

    def note(self) -> dict[str, Any]:
        return {"name": self.name, "beta0": self.beta0}


@dataclass(frozen=True)
class Dirichlet:
    """Eq. 5: alpha ~ Dir(beta) while learning; Eq. 6, the mode, for aggregation.

    Eq. 6 is a mode only while every beta_k > 1, so beta is kept above 1: by a floor, or by
    beta = 1.001 + softplus(theta).

    Example:
        >>> Dirichlet().alpha(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)).tolist()
        [0.16666666666666666, 0.3333333333333333, 0.5]

    Note:
        The paper says nothing of beta_k <= 1: decision 2.
    """

    beta0: float = 6.0
    keep_above_one: Literal["softplus", "floor"] = "floor"
    floor: float = 1e-3
    name: str = "dirichlet"

    def __post_init__(self) -> None:
        if not self.beta0 > 1 + self.floor:
            raise ConfigError(
                f"beta0 = {self.beta0} leaves the Dirichlet's mode (Eq. 6) undefined",
                where="beta0",
                remedy=f"use a value above {1 + self.floor} (the paper: 6.0)",
            )

    def initial(self, K: int, P: int | None = None) -> Tensor:
        return _constant(self.beta0, K, P)

    def alpha(self, beta: Tensor) -> Tensor:
        return (beta - 1) / (beta - 1).sum(dim=0, keepdim=True)

    def sample(self, beta: Tensor, chance: torch.Generator) -> Tensor:
        last = self.checked(beta).movedim(0, -1)
        with drawing_from(chance):  # `rsample` takes no generator
            alpha = torch.distributions.Dirichlet(last, validate_args=False).rsample()
        return alpha.movedim(-1, 0)

    def checked(self, beta: Tensor) -> Tensor:
        """Beta, if it is finite: what is drawn from anything else would look legal."""
        if not bool(torch.isfinite(beta).all()):
            raise ValueError(f"beta is not finite: {beta.tolist()}")
        return beta

    def mean(self, beta: Tensor) -> Tensor:
        return beta / beta.sum(dim=0, keepdim=True)

    def free(self, beta: Tensor) -> Tensor:
        if self.keep_above_one == "floor":
            return beta.clone()
        # Kept off the floor by a hair: at the floor itself theta would be minus infinity.
        above = (beta - 1 - self.floor).clamp(min=1e-9)
        return above + torch.log(-torch.expm1(-above))

    def beta(self, theta: Tensor) -> Tensor:
        if self.keep_above_one == "floor":
            return theta.clamp(min=1 + self.floor)
        return 1 + self.floor + torch.nn.functional.softplus(theta)

    def note(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "beta0": self.beta0,
            "keep_above_one": self.keep_above_one,
            "floor": self.floor,
        }


@dataclass(frozen=True)
class Shrinking:
    """FedLAW: w = e^g sum_k alpha_k w_k with alpha = softmax(x); beta = (x_1 .. x_K, g).

    Statistics and frozen entries are not shrunk: a sample is (K, 2), with e^g alpha for the layer
    of all that is trained and alpha for the rest (`Layout.layers("trained")`).
    """

    name: str = "shrinking"

    def initial(self, K: int, P: int | None = None) -> Tensor:
        return _constant(0.0, K + 1, None)

    def alpha(self, beta: Tensor) -> Tensor:
        return torch.softmax(beta[:-1], dim=0)

    def sample(self, beta: Tensor, chance: torch.Generator) -> Tensor:
        alpha = self.alpha(beta)
        return torch.stack([beta[-1].exp() * alpha, alpha], dim=1)

    def mean(self, beta: Tensor) -> Tensor:
        return self.alpha(beta)

    def free(self, beta: Tensor) -> Tensor:
        return beta.clone()

    def beta(self, theta: Tensor) -> Tensor:
        return theta

    def note(self) -> dict[str, Any]:
        return {"name": self.name}


class _Softmax(torch.autograd.Function):
    """Eq. 4 with its derivative in this order of operations.

    PyTorch's own derivative sums in another order: the last bits would differ (decision 50).
    """

    @staticmethod
    def forward(ctx: Any, beta: Tensor) -> Tensor:
        alpha = torch.softmax(beta, dim=0)
        ctx.save_for_backward(alpha)
        return alpha

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> Tensor:
        (alpha,) = ctx.saved_tensors
        mean = (alpha * slopes).sum(dim=0, keepdim=True)
        derivative: Tensor = alpha * (slopes - mean)
        return derivative


def constraint(note: dict[str, Any]) -> Constraint:
    """The constraint a server described with `Constraint.note`."""
    kinds: dict[str, Callable[..., Constraint]] = {
        "softmax": Softmax,
        "dirichlet": Dirichlet,
        "shrinking": Shrinking,
    }
    return kinds[note["name"]](**note)


def moved_to(alpha: Tensor, gamma: Constraint, beta: Tensor) -> Tensor:
    """The beta of a softmax or a Dirichlet with these weights; kept legal.

    A softmax's beta keeps the mean of the one given, a Dirichlet's the sum of all beta_k - 1.

    Example:
        >>> beta = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
        >>> moved_to(torch.full((3,), 1 / 3, dtype=torch.float64), Dirichlet(), beta).tolist()
        [3.0, 3.0, 3.0]
    """
    if isinstance(gamma, Softmax):
        logits = alpha.log()
        return logits + (beta - logits).mean(dim=0, keepdim=True)
    return gamma.beta(gamma.free(1 + alpha * (beta - 1).sum(dim=0, keepdim=True)))


def smoothing(alpha: Tensor) -> Tensor:
    """The layer-wise smoothing loss: mean over p of ||alpha_{p+1} - alpha_p||^2, alpha (K, P).

    Note:
        The paper names this loss without its form: decision 11.
    """
    steps = max(1, alpha.shape[1] - 1)  # a single layer has no neighbour
    return (alpha[:, 1:] - alpha[:, :-1]).square().sum() / steps


def _constant(value: float, K: int, P: int | None) -> Tensor:
    return torch.full((K,) if P is None else (K, P), value, dtype=torch.float64)
