"""Your own data loaders as a site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from autofedavg.core.errors import DataError
from autofedavg.core.problem import CaseScore
from autofedavg.core.seeds import Purpose, Seeds, every_seed
from autofedavg.core.trainer import Batch, Training

Score = Callable[[nn.Module, Batch], Tensor]
METRIC = "score"


class Loader(Protocol):
    """PyTorch's DataLoader, or whatever else gives batches and knows how many."""

    @property
    def dataset(self) -> Any:
        """The cases: only their number is asked for."""

    def __len__(self) -> int:
        """Batches of a pass."""

    def __iter__(self) -> Iterator[Any]:
        """One pass over the cases."""


@dataclass(frozen=True)
class LoaderSite:
    """A site made of PyTorch data loaders, or of anything like them.

    Attributes:
        train: batches to train on.
        validation: batches to choose models on and, by default, to learn the weights on; may be
            None where the models after the last round are the ones that are tested.
        test: batches for the final numbers; the validation ones again when None.
        holdout: batches for `learn_on = "holdout"`.

    Shuffling and random transforms (PyTorch's, NumPy's and Python's global randomness) follow the
    run's seed; a loader's own generator, if it has one, is seeded anew at every pass.
    """

    train: Loader
    validation: Loader | None = None
    test: Loader | None = None
    holdout: Loader | None = None

    def loaders(self) -> dict[str, Loader]:
        """The loaders by split."""
        every = {
            "train": self.train,
            "validation": self.validation,
            "test": self.validation if self.test is None else self.test,
            "holdout": self.holdout,
        }
        return {split: loader for split, loader in every.items() if loader is not None}


class LoaderData:
    """A `LoaderSite` as a client sees it.

    Args:
        name: the site's name.
        site: its loaders.
        score: (network, batch) -> one score per case.
    """

    def __init__(self, name: str, site: LoaderSite, score: Score) -> None:
        self._name, self._loaders, self._score = name, site.loaders(), score
        self._own_test = site.test is not None
        if "test" not in self._loaders:
            raise DataError(
                "there is neither a validation nor a test loader",
                where=f"site {name}",
                remedy="add validation=, or test= and select = 'last'",
            )
        for split, loader in self._loaders.items():
            if len(loader) == 0:
                raise DataError(
                    f"the {split} loader is empty",
                    where=f"site {name}",
                    remedy="give every site at least one batch of each split",
                )
        self._under_way: tuple[tuple[str, int, int], Iterator[Batch]] | None = None

    def cases(self) -> Mapping[str, int]:
        counted = {
            s: loader for s, loader in self._loaders.items() if s != "test" or self._own_test
        }
        return {split: len(loader.dataset) for split, loader in counted.items()}

    def settle(self, device: torch.device) -> None:
        """Loaders are left as they are: the loss moves what they give."""

    def train_batches(self, seeds: Seeds, t: int, training: Training) -> Iterator[Batch]:
        loader = self._loaders["train"]
        steps = training.epochs * len(loader) or training.iterations
        iterator: Iterator[Batch] = iter(())
        for step in range(steps):
            number = seeds.number(self._name, Purpose.TRAIN_BATCHES, t, step)
            with every_seed(number):
                if step % len(loader) == 0:
                    self._reseed(loader, number)
                    iterator = iter(loader)
                batch = next(iterator)
            yield batch

    def weight_batch(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> Batch:
        if split not in self._loaders:
            raise DataError(
                f"there is no {split} loader", where=f"site {self._name}", remedy=f"add {split}="
            )
        begins = (s - 1) % len(self._loaders[split]) == 0
        if begins or self._under_way is None or self._under_way[0] != (split, t, s - 1):
            iterator = self._begin_pass(seeds, split, t, s)
        else:
            iterator = self._under_way[1]
        batch = self._next(iterator, seeds, t, s)
        self._under_way = ((split, t, s), iterator)
        return batch

    def score(self, network: nn.Module, split: str) -> list[CaseScore]:
        scores: list[CaseScore] = []
        self._reseed(self._loaders[split], 0)
        with every_seed(0):
            for batch in self._loaders[split]:
                values = self._score(network, batch).reshape(-1).tolist()
                scores += [
                    CaseScore(f"{split}-{len(scores) + i:05d}", METRIC, float(value))
                    for i, value in enumerate(values)
                ]
        return scores

    def _begin_pass(self, seeds: Seeds, split: str, t: int, s: int) -> Iterator[Batch]:
        """A loader's iterator that stands before the batch of step s of round t."""
        loader = self._loaders[split]
        first = s - (s - 1) % len(loader)
        number = seeds.number(self._name, Purpose.AGGREGATE_BATCHES, t, first)
        self._reseed(loader, number)
        with every_seed(number):
            iterator = iter(loader)
        for skipped in range(first, s):
            self._next(iterator, seeds, t, skipped)
        return iterator

    def _next(self, iterator: Iterator[Batch], seeds: Seeds, t: int, s: int) -> Batch:
        with every_seed(seeds.number(self._name, Purpose.AGGREGATE_BATCHES, t, s)):
            return next(iterator)

    @staticmethod
    def _reseed(loader: Loader, number: int) -> None:
        parts = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
        for owner in (loader, *parts):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(number)
