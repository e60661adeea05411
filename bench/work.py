"""The work that is timed: images in memory, a small network, and the bare loop over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from autofedavg.core.problem import CaseScore, LocalData, Problem
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.trainer import Training

Images = tuple[Tensor, Tensor]

RATE, MOMENTUM = 0.01, 0.9


def images(count: int) -> Images:
    """CIFAR-shaped noise with labels."""
    random = torch.Generator().manual_seed(0)
    return (
        torch.randn(count, 3, 32, 32, generator=random),
        torch.randint(10, (count,), generator=random),
    )


def small_cnn() -> nn.Sequential:
    """Two convolutions and three linear layers: 62,006 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def cross_entropy(network: nn.Module, batch: Images) -> Tensor:
    image, label = batch
    return nn.functional.cross_entropy(network(image), label)


def sgd(batch_size: int) -> Training:
    """One local epoch of SGD."""
    return Training(
        epochs=1, batch_size=batch_size, optimiser="sgd", learning_rate=RATE, momentum=MOMENTUM
    )


class TensorSite:
    """A site whose cases are rows of tensors; every split is all of them."""

    def __init__(self, site: str, cases: Images) -> None:
        self._site, self._cases = site, cases

    def cases(self) -> Mapping[str, int]:
        return dict.fromkeys(("train", "validation", "test"), len(self._cases[0]))

    def settle(self, device: torch.device) -> None:
        """The tensors stay where they are."""

    def train_batches(self, seeds: Seeds, t: int, training: Training) -> Iterator[Images]:
        random = seeds.generator(self._site, Purpose.TRAIN_BATCHES, t)
        for part in torch.randperm(len(self._cases[0]), generator=random).split(
            training.batch_size
        ):
            yield _take(self._cases, part)

    def weight_batch(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> Images:
        random = seeds.generator(self._site, Purpose.AGGREGATE_BATCHES, t, s)
        return _take(
            self._cases, torch.randperm(len(self._cases[0]), generator=random)[:batch_size]
        )

    def score(self, network: nn.Module, split: str) -> list[CaseScore]:
        raise NotImplementedError


def federated(cases: Images, clients: int) -> Problem:
    """The same images dealt to this many clients."""
    sites: dict[str, LocalData] = {
        f"site-{k:03d}": TensorSite(f"site-{k:03d}", share)
        for k, share in enumerate(shares(cases, clients))
    }
    return Problem(small_cnn, cross_entropy, sites)


def shares(cases: Images, clients: int) -> list[Images]:
    """Every client's images: views of all."""
    images, labels = (torch.tensor_split(part, clients) for part in cases)
    return list(zip(images, labels, strict=True))


def batch_sizes(count: int, clients: int, batch_size: int) -> list[int]:
    """The size of every batch these clients see in one epoch, in order."""
    sizes = []
    for share in torch.arange(count).tensor_split(clients):
        sizes += [len(part) for part in share.split(batch_size)]
    return sizes


class BareLoop:
    """SGD written as anyone would write it; a call takes one step per batch size."""

    def __init__(self, network: nn.Module, cases: Images, sizes: list[int]) -> None:
        self._network, self._cases, self._sizes = network.train(), cases, sizes
        self._optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
        self._random = torch.Generator().manual_seed(0)

    def __call__(self) -> None:
        order = torch.randperm(len(self._cases[0]), generator=self._random)
        for part in order[: sum(self._sizes)].split(self._sizes):
            self._optimiser.zero_grad()
            cross_entropy(self._network, _take(self._cases, part)).backward()
            self._optimiser.step()


def _take(cases: Images, part: Tensor) -> Images:
    return cases[0][part], cases[1][part]
