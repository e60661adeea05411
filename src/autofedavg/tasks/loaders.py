"""Sites made of PyTorch data loaders."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from autofedavg.core.errors import DataError
from autofedavg.core.problem import CaseScore
from autofedavg.core.seeds import Purpose, Seeds, every_seed
from autofedavg.core.trainer import Batch, Training

Score = Callable[[nn.Module, Batch], Tensor]
METRIC = "score"


class Loader(Protocol):
    """PyTorch's DataLoader, or another iterable of batches with a length and a sized dataset."""

    @property
    def dataset(self) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class LoaderSite:
    """A site made of PyTorch data loaders, or of similar objects.

    Attributes:
        train: batches for training.
        validation: batches to select models and, by default, to learn the aggregation weights;
            may be None if the models after the last round are tested.
        test: batches for the final scores; the validation batches when None.
        holdout: batches for `learn_on = "holdout"`.
        patients: for differential privacy, by split, the patient of every case in the loader's
            data set: any names or numbers. A patient's cases count as one.

    Shuffling and random transforms (PyTorch's, NumPy's and Python's global randomness) follow the
    run's seed; a loader's own generator, if it has one, is reseeded at every pass.
    """

    train: Loader
    validation: Loader | None = None
    test: Loader | None = None
    holdout: Loader | None = None
    patients: Mapping[str, Sequence[Hashable]] | None = None

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
    """The loaders of a site as the data of a client; `score` gives one score per case."""

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
        loaders = self._loaders.items()
        return {s: len(loader.dataset) for s, loader in loaders if s != "test" or self._own_test}

    def settle(self, device: torch.device) -> None:
        """Does nothing: the loss moves the batches."""

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
        """A loader's iterator positioned before the batch of step s of round t."""
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


class PatientLoaderData(LoaderData):
    """Loaders whose cases belong to patients: what differential privacy needs of them.

    Batches are the patients', not the loader's: `training.batch_size` of them, on average.
    """

    def __init__(self, name: str, site: LoaderSite, score: Score) -> None:
        super().__init__(name, site, score)
        self._patients: dict[str, dict[Hashable, list[int]]] = {}
        for split, names in (site.patients or {}).items():
            loader = self._loaders.get(split)
            if loader is None or len(names) != len(loader.dataset):
                cases = 0 if loader is None else len(loader.dataset)
                raise DataError(
                    f"patients has {len(names)} entries for {cases} {split} cases",
                    where=f"site {name}",
                    remedy="name the patient of every case, in the order of the data set",
                )
            if not hasattr(loader, "collate_fn") or not hasattr(loader.dataset, "__getitem__"):
                raise DataError(
                    f"the cases of the {split} loader cannot be had one by one",
                    where=f"site {name}",
                    remedy="use PyTorch's DataLoader with a data set that has an index",
                )
            for case, patient in enumerate(names):
                self._patients.setdefault(split, {}).setdefault(patient, []).append(case)

    def patients(self, split: str) -> int:
        return len(self._patients.get(split, ()))

    def patient_batch(
        self, split: str, patient: int, random: np.random.RandomState, augment: bool
    ) -> Batch:
        """All cases of one patient; a data set's own random transforms follow `random`."""
        loader: Any = self._loaders[split]
        cases = list(self._patients[split].values())[patient]
        with every_seed(int(random.randint(2**31))):
            return loader.collate_fn([loader.dataset[case] for case in cases])

    def shares_patients(self, split: str, other: str) -> bool:
        return bool(self._patients.get(split, {}).keys() & self._patients.get(other, {}).keys())


def loader_data(name: str, site: LoaderSite, score: Score) -> LoaderData:
    """A site's loaders as the data of a client."""
    return (LoaderData if site.patients is None else PatientLoaderData)(name, site, score)
