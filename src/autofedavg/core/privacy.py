"""Differential privacy by patient: the settings, and one noisy mean of clipped gradients.

A patient's contribution to a step is one vector, clipped to the l2 norm C. Patients are sampled
independently, with chance q = batch / n. The sum gets Gaussian noise of standard deviation sigma C
and is divided by q n, not by the number of patients that were found (decision 65).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pydantic import model_validator
from torch import Tensor, nn

from autofedavg.core.accountant import Mechanism
from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import global_seed
from autofedavg.core.settings import Settings, setting

LEAST_NOISE = 0.1  # below it epsilon is in the hundreds, for a single step


class Bound(NamedTuple):
    """How far one patient can move a sum, in l2, and the noise in multiples of it."""

    clip: float
    sigma: float


class Privacy(Settings):
    """Noise on what leaves a site, by patient; everything is off by default (decision 65)."""

    theta_clip: float = setting(
        0.0,
        origin="ours: decision 65",
        help="bound on one patient's gradient in a step on beta; 0: no differential privacy",
        ge=0,
        allow_inf_nan=False,
    )
    theta_noise: float = setting(
        0.0,
        origin="ours: decision 65",
        help="standard deviation of the noise on a step on beta, in multiples of theta_clip",
        ge=0,
        allow_inf_nan=False,
    )
    train_clip: float = setting(
        0.0,
        origin="ours: decision 65",
        help="bound on one patient's gradient in a training step; 0: no differential privacy",
        ge=0,
        allow_inf_nan=False,
    )
    train_noise: float = setting(
        0.0,
        origin="ours: decision 65",
        help="standard deviation of the noise on a training step, in multiples of train_clip",
        ge=0,
        allow_inf_nan=False,
    )
    delta: float = setting(
        1e-3,
        origin="ours: decision 65",
        help="chance that epsilon does not hold; below 1/n at every site",
        gt=0,
        lt=1,
    )
    epsilon: float = setting(
        0.0,
        origin="ours: decision 65",
        help="the most that a row may spend at any site; check and run refuse more; 0: no limit",
        ge=0,
        allow_inf_nan=False,
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Privacy:
        for kind in ("theta", "train"):
            clip, noise = getattr(self, f"{kind}_clip"), getattr(self, f"{kind}_noise")
            if bool(clip) != bool(noise):
                raise ValueError(
                    f"{kind}_clip = {clip:g} and {kind}_noise = {noise:g}: differential privacy "
                    "needs both; set both to 0 to do without"
                )
            if 0 < noise < LEAST_NOISE:
                raise ValueError(
                    f"{kind}_noise = {noise:g} protects nobody; use at least {LEAST_NOISE}"
                )
        alone = self.model_fields_set & {"delta", "epsilon"}
        if alone and not self.on:
            raise ValueError(
                f"{' and '.join(sorted(alone))} has no effect without noise: set theta_clip and "
                "theta_noise, or train_clip and train_noise"
            )
        return self

    @property
    def theta(self) -> Bound | None:
        """The noise on steps on beta, and on gradients that are sent for them."""
        return Bound(self.theta_clip, self.theta_noise) if self.theta_clip else None

    @property
    def train(self) -> Bound | None:
        """The noise on training steps."""
        return Bound(self.train_clip, self.train_noise) if self.train_clip else None

    @property
    def on(self) -> bool:
        return bool(self.theta_clip or self.train_clip)


NONE = Privacy()


def mechanism(bound: Bound, n: int, batch_size: int) -> Mechanism:
    """The release of one step of `batch_size` patients, on average, of n."""
    return Mechanism(min(1.0, batch_size / n), bound.sigma)


def private_gradient(
    vectors: Iterable[Tensor],
    like: Tensor,
    bound: Bound,
    expected: float,
    noise: Callable[[int], Tensor],
) -> Tensor:
    """(sum_i clip(v_i, C) + N(0, sigma^2 C^2 I)) / (q n), of the shape and type of `like`.

    Args:
        vectors: one for each sampled patient; there may be none. Each is read before the next one
            is asked for, so they may share memory.
        like: what the result is like.
        bound: C and sigma.
        expected: q n, the mean number of patients in a sample.
        noise: so many standard normal numbers, float64 on the CPU.
    """
    total = torch.zeros_like(like)
    for vector in vectors:
        total += clipped(vector, bound.clip)
    drawn = noise(total.numel()).view(total.shape) * (bound.sigma * bound.clip)
    return (total + drawn.to(total)) / expected


def clipped(vector: Tensor, most: float) -> Tensor:
    """The vector, shortened to this l2 norm where it is longer; zeros if it is not finite."""
    # A patient whose numbers overflow must not show by it, nor by an error.
    norm = torch.linalg.vector_norm(vector, dtype=torch.float64)
    scale = torch.where(torch.isfinite(norm), (most / norm).clamp(max=1.0), 0.0)
    return torch.nan_to_num(vector, 0.0, 0.0, 0.0) * scale.to(vector)


class Patient(NamedTuple):
    """What one patient contributes to a step: a batch alone, and a seed for the network's draws."""

    seed: int
    batch: Any


@dataclass(frozen=True)
class PrivateBatch:
    """The sampled patients of one noisy training step: `LocalTrainer.train` takes it as a batch."""

    patients: Iterable[Patient]
    bound: Bound
    expected: float
    noise: Callable[[int], Tensor]

    def backward(self, one: Callable[[Any], Tensor], gradient: Tensor) -> Tensor:
        """Leaves the noisy mean in `gradient`; returns the sampled patients' mean loss.

        Args:
            one: leaves the gradient of a batch in `gradient`, and returns its loss.
            gradient: (D',).
        """
        losses = []

        def each() -> Iterable[Tensor]:
            for patient in self.patients:
                with global_seed(patient.seed, gradient.device):
                    losses.append(one(patient.batch))
                yield gradient

        gradient.copy_(private_gradient(each(), gradient, self.bound, self.expected, self.noise))
        return torch.stack(losses).mean() if losses else gradient.new_zeros(())


def refuse_network(network: nn.Module, where: str) -> None:
    """Refuses a network that keeps statistics of patients besides its weights.

    Raises:
        ConfigError: it has batch norm, or another norm with running statistics.
    """
    for name, module in network.named_modules():
        if getattr(module, "track_running_stats", False):
            raise ConfigError(
                f"{name or type(module).__name__} keeps running statistics of patients, which no "
                "noise covers",
                where=where,
                remedy="use group or instance norm without running statistics, or "
                "set privacy.train_clip = 0",
            )
