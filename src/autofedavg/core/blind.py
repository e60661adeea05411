"""The step on theta_j that a site takes alone: LearnAggWeight without anybody else's model.

With w = sum_j (u_j / U) w_j, U = sum_j u_j, and g the mean gradient at w, the derivative of the
mean loss by u_j is <g, w_j - w> / U. A site needs g, w and U, which everybody may know, and its own
w_j. g may be sketched: R g, with R public (decision 62).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.layout import Layout, Split
from autofedavg.core.sketch import Sketch

Gamma = Literal["softmax", "dirichlet"]
# Within these, no site can outweigh another by more than e^4, or 7,000, and fixed point fits.
BOUNDS: Mapping[str, tuple[float, float]] = {"softmax": (-2.0, 2.0), "dirichlet": (1.001, 8.0)}
_MOMENT = "moment."


@dataclass(frozen=True)
class BlindPlan:
    """The constants of blind learning that a site must know.

    Attributes:
        gamma: softmax, u = exp(theta); or the Dirichlet's mode, u = theta - 1.
        theta0: where every site starts.
        optimiser: of theta; its moments stay at the site.
        layers: what a layer is, for layer-wise weights.
        sketch: m, the most numbers that a gradient is sent as; 0 for all.
        show: whether sites send u_j in clear.
        sizes: whether u_j counts by the site's share of all training cases (decision 62).
    """

    gamma: Gamma
    theta0: float
    optimiser: BetaOptimiser
    layers: Split | None = None
    sketch: int = 0
    show: bool = False
    sizes: bool = False

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> BlindPlan:
        """The plan that a server described with `note`."""
        optimiser = note["optimiser"]
        betas = tuple(optimiser["betas"])
        return cls(**{**note, "optimiser": BetaOptimiser(**{**optimiser, "betas": betas})})

    def note(self) -> dict[str, Any]:
        """Plain values of a message."""
        return {
            "gamma": self.gamma,
            "theta0": self.theta0,
            "optimiser": self.optimiser.note(),
            "layers": self.layers,
            "sketch": self.sketch,
            "show": self.show,
            "sizes": self.sizes,
        }

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest theta."""
        return BOUNDS[self.gamma]

    def numbers(self, layout: Layout) -> int:
        """P: how many numbers theta has."""
        return layout.layers(self.layers).P if self.layers else 1

    def sketch_of(self, layout: Layout) -> Sketch:
        """The shape of R for a network."""
        layers = layout.layers(self.layers) if self.layers else None
        return Sketch.of(layout.trainable, layers, self.sketch)

    def start(self, layout: Layout) -> dict[str, Tensor]:
        """What a site begins with: theta^0."""
        P = self.numbers(layout)
        return {"theta": torch.full((P,), self.theta0, dtype=torch.float64)}

    def weight(self, theta: Tensor, share: float = 1.0) -> Tensor:
        """u_j of theta_j; alpha_j = u_j / U. `share` is n_j / n where sizes count."""
        return share * (theta.exp() if self.gamma == "softmax" else theta - 1)

    def slope(self, theta: Tensor, d: Tensor, total: Tensor, share: float = 1.0) -> Tensor:
        """The derivative of the mean loss by theta_j, from d_j = <g, w_j - w>."""
        return share * (d / total if self.gamma == "dirichlet" else theta.exp() / total * d)

    def stepped(
        self, state: Mapping[str, Tensor], d: Tensor, total: Tensor, share: float = 1.0
    ) -> dict[str, Tensor]:
        """The state after a step: theta, kept within its bounds, and the moments."""
        theta = state["theta"]
        moments = {
            name.removeprefix(_MOMENT): value
            for name, value in state.items()
            if name.startswith(_MOMENT)
        }
        slope = self.slope(theta, d, total, share)
        found, moments = self.optimiser.step_from(theta, slope, moments)
        kept = {f"{_MOMENT}{name}": value for name, value in moments.items()}
        return {"theta": found.clamp(*self.bounds), **kept}


@dataclass(frozen=True)
class Lesson:
    """What sites learn from: R g of the round before, and U, by layer.

    Attributes:
        y: the mean gradient at the global model, sketched: (m,).
        total: U, the sum of all u_j that the model was made with: (P,).
    """

    y: Tensor
    total: Tensor

    def step(
        self,
        plan: BlindPlan,
        state: Mapping[str, Tensor],
        sketch: Sketch,
        w: Tensor,
        share: float = 1.0,
    ) -> tuple[dict[str, Tensor], float]:
        """A site's step, and the cosine of g and w_j - w, as the sketch has it.

        Args:
            plan: the constants.
            state: what the site keeps; `seen` is R w_j of the round that y belongs to.
            sketch: the shape of R.
            w: R w of the global model that y was taken at.
            share: n_j / n where sizes count.
        """
        y, apart = self.y.cpu().double(), state["seen"] - w.cpu()  # a GPU sums in another order
        d = sketch.inner(y, apart)
        lengths = float(torch.linalg.vector_norm(y) * torch.linalg.vector_norm(apart))
        cosine = float(d.sum()) / lengths if lengths > 0 and math.isfinite(lengths) else 0.0
        return plan.stepped(state, d, self.total.cpu(), share), max(-1.0, min(1.0, cosine))
