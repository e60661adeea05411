"""What is learned, and from whose data: a network, a loss, and what a site's data can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import Purpose, Seeds, global_seed
from autofedavg.core.site import Site
from autofedavg.core.trainer import Batch, Loss, Training

Logits = Callable[[nn.Module, Batch], Tensor]
SERVER = "server"  # its name in the run's random streams


class CaseScore(NamedTuple):
    """One metric of one case."""

    case: str
    metric: str
    value: float


class LocalData(Protocol):
    """What a client needs to know of its own data; made by a task, or by you.

    A site of labelled images may also have `class_counts() -> Sequence[int] | None`, the number of
    its training cases per class: FedMA weighs the classifier with them. One with
    `only(split, picks) -> LocalData`, the same data with these cases of a split (positions among
    those that `score` scores) and no others, can be fitted on one half and scored on the other.
    """

    def settle(self, device: torch.device) -> None:
        """Called once with the network's device; may move the data there."""

    def cases(self) -> Mapping[str, int]:
        """The number of cases per split: train, validation, test (and holdout)."""

    def train_batches(self, seeds: Seeds, t: int, training: Training) -> Iterator[Batch]:
        """The M_k batches of round t; the same ones whenever asked."""

    def weight_batch(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> Batch:
        """The batch of step s of LearnAggWeight in round t; the same one whenever asked."""

    def score(self, network: nn.Module, split: str) -> list[CaseScore]:
        """Scores a network on every case of a split."""


@runtime_checkable
class PatientData(Protocol):
    """What differential privacy needs of a site's data besides: patients one by one."""

    def patients(self, split: str) -> int:
        """The number of patients of a split; one may have several cases."""

    def patient_batch(
        self, split: str, patient: int, random: np.random.RandomState, augment: bool
    ) -> Batch:
        """All cases of one patient, numbered from 0, as a batch alone; crops come from `random`."""

    def shares_patients(self, split: str, other: str) -> bool:
        """Whether a patient of one split may be in the other one, too."""


def logits_of(network: nn.Module, batch: Batch) -> Tensor:
    """The network's outputs for a batch that is its input, or a tuple that begins with it."""
    images = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(images, Tensor):
        raise ConfigError(
            f"a batch begins with {type(images).__name__}, not with the network's input",
            where="logits",
            remedy="give a function logits(network, batch) that returns class logits",
        )
    outputs: Tensor = network(images.to(next(network.parameters()).device))
    return outputs


@dataclass(frozen=True)
class Problem:
    """What is learned: a network, a loss, and every site's data.

    Args:
        network: builds the network; every call must build the same architecture.
        loss: (network, batch) -> scalar.
        sites: each site's data, by name.
        metric: the score by which models are chosen; higher is better.
        counted: whether every site scores exactly the cases that it counts.
        steady: whether network and loss always do the same operations on tensors, so that a GPU
            may record a step and replay it; not so where Python code decides by what a batch holds.
        logits: (network, batch) -> class logits (B, C, ...), of which the softmax over C gives
            probabilities, or (B, 1, ...) for a sigmoid; for methods that compare predictions.
        proxy: data at the server, for methods that need them; no case of any site is among them.
    """

    network: Callable[[], nn.Module]
    loss: Loss
    sites: Mapping[str, LocalData]
    metric: str = "dice"
    counted: bool = True
    steady: bool = False
    logits: Logits = logits_of
    proxy: LocalData | None = None

    def initial(self, seeds: Seeds) -> tuple[Model, Layout]:
        """w^0 and the layout of the network, from the run's seed."""
        with global_seed(seeds.number("server", Purpose.INIT)):
            network = self.network()
        layout = Layout.of(network)
        return layout.read(network), layout

    def roster(self) -> list[Site]:
        return [Site(name, dict(data.cases())) for name, data in sorted(self.sites.items())]
