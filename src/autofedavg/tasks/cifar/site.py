"""One client's share of CIFAR-10.

Images stay unsigned bytes on the network's device. Training batches also say where to crop and
whether to flip; the loss does it (`network_input`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from autofedavg.core.errors import DataError
from autofedavg.core.problem import CaseScore
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.trainer import Training
from autofedavg.tasks.cifar.files import LabelledImages
from autofedavg.tasks.cifar.network_input import (
    CLASSES,
    MEAN,
    PAD,
    SIZE,
    STD,
    CifarBatch,
    cifar_loss,
    normalise,
)
from autofedavg.tasks.cifar.pictures import BatchPlan, PictureFormat

SCORED = 500
BLOCK = 64  # steps of LearnAggWeight whose images are drawn at once: seeding is expensive


class CifarSite:
    """The images of one client.

    Args:
        site: its name.
        local: its training images in order; the last `aside` of them are the holdout.
        local_names: case names of these.
        test: its share of the test images.
        test_names: case names of these.
        aside: size of the holdout, which is also the validation split.
        train_on_holdout: whether training uses the holdout too.
    """

    plain_loss = staticmethod(cifar_loss)

    def __init__(
        self,
        site: str,
        local: LabelledImages,
        local_names: Sequence[str],
        test: LabelledImages,
        test_names: Sequence[str],
        aside: int,
        train_on_holdout: bool,
    ) -> None:
        self.site = site
        self.shown = PictureFormat(SIZE, MEAN, STD, PAD)
        n = len(local_names)
        trained = n if train_on_holdout else n - aside
        held = ("local", slice(n - aside, n))
        self._splits = {
            "train": ("local", slice(0, trained)),
            "holdout": held,
            "validation": held,
            "test": ("test", slice(0, len(test_names))),
        }
        self._names = {"local": list(local_names), "test": list(test_names)}
        self._arrays = {"local": _tensors(local), "test": _tensors(test)}
        self._block: tuple[object, np.ndarray] | None = None

    def cases(self) -> Mapping[str, int]:
        return {split: part.stop - part.start for split, (_, part) in self._splits.items()}

    def class_counts(self) -> list[int]:
        """Training images of every class."""
        counts: list[int] = torch.bincount(self._of("train")[1], minlength=CLASSES).tolist()
        return counts

    def settle(self, device: torch.device) -> None:
        """Moves the images to a device; batches are then made there."""
        self._arrays = {
            kind: (images.to(device), labels.to(device))
            for kind, (images, labels) in self._arrays.items()
        }

    def train_batches(self, seeds: Seeds, t: int, training: Training) -> Iterator[CifarBatch]:
        images, labels = self._of("train")
        device = images.device
        order, ends = self._order(seeds, t, training)
        shift, flip = (torch.from_numpy(part).to(device) for part in self._moves(seeds, t, order))
        picks = torch.from_numpy(order).to(device)
        start = 0
        for end in ends:
            pick = picks[start:end]
            yield images[pick], labels[pick], shift[start:end], flip[start:end]
            start = end

    def pictures(self) -> tuple[Tensor, Tensor]:
        return self._arrays["local"]

    def train_steps(self, seeds: Seeds, t: int, training: Training) -> BatchPlan:
        order, ends = self._order(seeds, t, training)
        shift, flip = self._moves(seeds, t, order)
        moves = 2 * (shift[:, 0] * (2 * PAD + 1) + shift[:, 1]) + flip
        # Where each picture of the round goes: its batch, and its place in it.
        lengths = np.diff([0, *ends])
        batch = np.repeat(np.arange(len(ends)), lengths)
        place = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        steps = BatchPlan(
            np.full((len(ends), training.batch_size), -1, np.int32),
            np.zeros((len(ends), training.batch_size), np.uint8),
        )
        steps.picks[batch, place] = order
        steps.moves[batch, place] = moves
        return steps

    def weight_step(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> BatchPlan:
        pick = self._drawn(seeds, t, s, split, batch_size) + self._splits[split][1].start
        still = 2 * (PAD * (2 * PAD + 1) + PAD)
        return BatchPlan(pick.astype(np.int32)[None], np.full((1, batch_size), still, np.uint8))

    def weight_batch(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> CifarBatch:
        images, labels = self._of(split)
        drawn = self._drawn(seeds, t, s, split, batch_size)
        pick = torch.from_numpy(drawn).to(images.device)
        shift = torch.full((batch_size, 2), PAD, device=images.device)
        flip = torch.zeros(batch_size, dtype=torch.bool, device=images.device)
        return images[pick], labels[pick], shift, flip

    def patients(self, split: str) -> int:
        return self.cases()[split]

    def patient_batch(
        self, split: str, patient: int, random: np.random.RandomState, augment: bool
    ) -> CifarBatch:
        images, labels = (part[patient : patient + 1] for part in self._of(split))
        shift = random.randint(2 * PAD + 1, size=(1, 2)) if augment else [[PAD, PAD]]
        flip = torch.tensor([augment and random.random_sample() < 0.5], device=images.device)
        return images, labels, torch.tensor(shift, device=images.device), flip

    def shares_patients(self, split: str, other: str) -> bool:
        (kind, mine), (of, theirs) = self._splits[split], self._splits[other]
        return kind == of and mine.start < theirs.stop and theirs.start < mine.stop

    def only(self, split: str, picks: Sequence[int]) -> CifarSite:
        """The same images, of a split these alone."""
        made, (images, labels) = copy.copy(self), self._of(split)
        kind, part = self._splits[split]
        names, at = self._names[kind][part], torch.tensor(picks, device=images.device)
        own = f"some of {split}"
        made._arrays = {**self._arrays, own: (images[at], labels[at])}
        made._names = {**self._names, own: [names[pick] for pick in picks]}
        made._splits = {**self._splits, split: (own, slice(0, len(picks)))}
        made._block = None
        return made

    def score(self, network: nn.Module, split: str) -> list[CaseScore]:
        images, labels = self._of(split)
        device = next(network.parameters()).device
        right = [
            network(normalise(some.to(device))).argmax(dim=1) == truth.to(device)
            for some, truth in zip(
                torch.split(images, SCORED), torch.split(labels, SCORED), strict=True
            )
            if len(truth)
        ]
        values = torch.cat(right).double().tolist() if right else []
        kind, part = self._splits[split]
        names = self._names[kind][part]
        return [
            CaseScore(name, "accuracy", value) for name, value in zip(names, values, strict=True)
        ]

    def _of(self, split: str) -> tuple[Tensor, Tensor]:
        kind, part = self._splits[split]
        images, labels = self._arrays[kind]
        return images[part], labels[part]

    def _drawn(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> np.ndarray:
        """The images of a step of LearnAggWeight, as positions in their split."""
        n = self.cases()[split]
        if not n:
            raise DataError(
                f"there is no {split} image",
                where=f"site {self.site}",
                remedy="set task.holdout, or method.learn_on to 'train'",
            )
        block, row = divmod(s, BLOCK)
        key = (seeds, t, block, n, batch_size)
        if self._block is None or self._block[0] != key:
            random = seeds.numpy(self.site, Purpose.AGGREGATE_BATCHES, t, block)
            self._block = key, random.randint(n, size=(BLOCK, batch_size))
        picks: np.ndarray = self._block[1][row]
        return picks

    def _moves(self, seeds: Seeds, t: int, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shift of every image of a round, (n, 2), and whether it is flipped."""
        random = seeds.numpy(self.site, Purpose.TRANSFORMS, t)
        shift = random.randint(2 * PAD + 1, size=(len(order), 2))
        return shift, random.random_sample(len(order)) < 0.5

    def _order(self, seeds: Seeds, t: int, training: Training) -> tuple[np.ndarray, list[int]]:
        """The images of a round in order, and the end of each batch."""
        random = seeds.numpy(self.site, Purpose.TRAIN_BATCHES, t)
        n, size = self.cases()["train"], training.batch_size
        if training.iterations:
            count = training.iterations * size
            return random.randint(n, size=count), list(range(size, count + 1, size))
        order = np.concatenate([random.permutation(n) for _ in range(training.epochs)])
        within = [*range(size, n, size), n]
        return order, [n * epoch + end for epoch in range(training.epochs) for end in within]


def _tensors(pictures: LabelledImages) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(np.ascontiguousarray(pictures.images))
    return images, torch.from_numpy(pictures.labels.astype(np.int64))
