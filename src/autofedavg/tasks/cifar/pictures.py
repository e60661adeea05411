"""The interface of a site whose training steps can be computed together with other sites'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Loss, Training


class BatchPlan(NamedTuple):
    """Batches as indices: (steps, batch) each.

    `picks` are positions among the site's pictures, -1 for none; `moves` are
    2 * (down * (2 pad + 1) + right) + flip, where pad down and pad right leave a picture in place.
    """

    picks: np.ndarray
    moves: np.ndarray


@dataclass(frozen=True)
class PictureFormat:
    """The scaling from bytes to the network's input by channel: (byte - mean) / std."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int


@runtime_checkable
class PictureSite(Protocol):
    """A site whose loss is the mean cross entropy of square pictures, moved and flipped."""

    shown: PictureFormat

    @property
    def plain_loss(self) -> Loss:
        """That loss as a function, to compare with the loss of a problem."""

    def pictures(self) -> tuple[Tensor, Tensor]:
        """Its own pictures in bytes (n, channels, size, size), and their classes."""

    def train_steps(self, seeds: Seeds, t: int, training: Training) -> BatchPlan:
        """The batches of `train_batches`."""

    def weight_step(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> BatchPlan:
        """The batch of `weight_batch`."""
