"""Segmentation with MONAI: network, loss, training crops and scores of every image task.

Crops balanced between the classes and background, flips, intensity shift | U-Net, Dice loss |
sliding window -> probabilities back on the file's own grid -> Dice per case and class.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from nibabel.orientations import io_orientation
from torch import Tensor, nn

from autofedavg.core.problem import CaseScore
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.trainer import Loss, Training
from autofedavg.tasks.imaging.casefolder import PreparedCase
from autofedavg.tasks.imaging.monai_import import importing_monai
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import dices, predict

with importing_monai():
    from monai.losses import DiceCELoss, DiceLoss
    from monai.networks.nets import BasicUNet, UNet

Batch = tuple[Tensor, Tensor]
Item = TypeVar("Item")
SHIFTED = 0.5  # of crops have their intensity shifted, as in the same group's lesion model
TRIES = 20  # draws of a background voxel before any voxel is taken


def network(how: Pipeline, channels: int = 1, classes: int = 1) -> nn.Module:
    """The network of a pipeline: background and one output per class; instance norm."""
    common = {"spatial_dims": how.axes, "in_channels": channels, "out_channels": classes + 1}
    made: nn.Module
    if how.network == "basic-unet":
        made = BasicUNet(**common, features=how.channels)
    else:
        made = UNet(
            **common, channels=how.channels, strides=how.shrinking, num_res_units=how.residual_units
        )
    return made


def loss(how: Pipeline) -> Loss:
    """The loss of a pipeline: (network, (image, label)) -> scalar."""
    options = {"to_onehot_y": True, "softmax": True, "squared_pred": True}
    kind = DiceLoss if how.loss == "dice" else DiceCELoss
    return partial(_loss, kind(include_background=False, **options))


def _loss(criterion: Callable[[Tensor, Tensor], Tensor], net: nn.Module, batch: Batch) -> Tensor:
    image, label = batch
    device = next(net.parameters()).device
    return criterion(net(image.to(device)).float(), label.to(device))


class SegmentationSite:
    """A site's prepared cases as the data of a client.

    Args:
        site: its name.
        cases: its prepared cases by split.
        how: the pipeline.
        classes: the names of the classes; a single one needs no name in the scores.
        share: of a device's memory that this site may use.
        mirrored: splits whose labels are mirrored along the first axis.
        patients: the patient of each case, by its name; the case itself where it is not there.
    """

    def __init__(
        self,
        site: str,
        cases: Mapping[str, Sequence[PreparedCase]],
        how: Pipeline,
        classes: Sequence[str] = ("foreground",),
        share: float = 1.0,
        mirrored: Collection[str] = (),
        patients: Mapping[str, str] | None = None,
    ) -> None:
        self.site, self._cases, self._how, self._classes = site, cases, how, tuple(classes)
        self._share, self._mirrored = share, mirrored
        self._of_patient = {
            split: _by_patient(part, patients or {}) for split, part in cases.items()
        }
        self._ahead = 0 if all(c.held for part in cases.values() for c in part) else 2

    def cases(self) -> Mapping[str, int]:
        return {split: len(cases) for split, cases in self._cases.items()}

    def settle(self, device: torch.device) -> None:
        """Moves held cases to the device, up to the site's share of half its free memory."""
        room = math.inf
        if device.type == "cuda":
            room = self._share * torch.cuda.mem_get_info(device)[0] / 2
        for part in self._cases.values():
            for case in part:
                fits = case.held and case.nbytes <= room
                room -= case.nbytes if fits else 0
                case.settle(device, move=fits)

    def train_batches(self, seeds: Seeds, t: int, training: Training) -> Iterator[Batch]:
        def make(step: int, picks: np.ndarray) -> Batch:
            random = seeds.numpy(self.site, Purpose.TRANSFORMS, t, step)
            return self._batch("train", picks, random, augment=True)

        jobs = (
            partial(make, step, picks) for step, picks in enumerate(self._picks(seeds, t, training))
        )
        return ahead(jobs, self._ahead)

    def weight_batch(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> Batch:
        random = seeds.numpy(self.site, Purpose.AGGREGATE_BATCHES, t, s)
        picks = random.randint(len(self._cases[split]), size=batch_size)
        return self._batch(split, picks, random, augment=False)

    def patients(self, split: str) -> int:
        return len(self._of_patient.get(split, ()))

    def patient_batch(
        self, split: str, patient: int, random: np.random.RandomState, augment: bool
    ) -> Batch:
        return self._batch(split, self._of_patient[split][patient], random, augment)

    def shares_patients(self, split: str, other: str) -> bool:
        return split == other

    def only(self, split: str, picks: Sequence[int]) -> SegmentationSite:
        """The same cases, of a split these alone."""
        made = copy.copy(self)
        made._cases = {**self._cases, split: [self._cases[split][pick] for pick in picks]}
        return made

    def score(self, network: nn.Module, split: str) -> list[CaseScore]:
        scores = []
        for case in self._cases[split]:
            found, original = self.predict(network, case), case.original()
            if split in self._mirrored:
                original = original.flip(_first_axis(case))
            values = dices(found, original, len(self._classes))
            if len(values) > 1:
                named = zip(self._classes, values, strict=True)
                scores += [CaseScore(case.case, f"dice:{name}", value) for name, value in named]
            scores.append(CaseScore(case.case, "dice", math.fsum(values) / len(values)))
            scores.append(CaseScore(case.case, "label_voxels", float(original.count_nonzero())))
        return scores

    def predict(self, network: nn.Module, case: PreparedCase) -> Tensor:
        """The predicted class of every voxel of the file's own grid, uint8: 0 for background."""
        return predict(network, case, self._how, len(self._classes))

    def _picks(self, seeds: Seeds, t: int, training: Training) -> Iterator[np.ndarray]:
        """The cases of each batch of a round: random draws, or whole passes in random order."""
        random = seeds.numpy(self.site, Purpose.TRAIN_BATCHES, t)
        n, size = len(self._cases["train"]), training.batch_size
        for _ in range(training.iterations):
            yield random.randint(n, size=size)
        for _ in range(training.epochs):
            order = random.permutation(n)
            yield from (order[start : start + size] for start in range(0, n, size))

    def _batch(
        self, split: str, picks: np.ndarray, random: np.random.RandomState, augment: bool
    ) -> Batch:
        cases = self._cases[split]
        bad = split in self._mirrored
        crops = [self._crop(cases[pick], random, augment, bad) for pick in picks]
        images, labels = zip(*crops, strict=True)
        return torch.stack(images), torch.stack(labels)

    def _crop(
        self, case: PreparedCase, random: np.random.RandomState, augment: bool, mirrored: bool
    ) -> Batch:
        how = self._how
        centre = self._centre(case, random)
        if mirrored:
            centre = (case.size[0] - 1 - centre[0], *centre[1:])
        box = []
        for middle, roi, size in zip(centre, how.roi, case.size, strict=True):
            start = (
                min(max(middle - roi // 2, 0), size - roi) if size >= roi else -((roi - size) // 2)
            )
            box.append(slice(start, start + roi))
        image, label = case.window(tuple(box))
        if mirrored:
            first, *others = box
            there = slice(case.size[0] - first.stop, case.size[0] - first.start)
            label = case.window((there, *others))[1].flip(1)
        if augment:
            axes = [axis for axis in range(1, how.axes + 1) if random.random_sample() < how.flip]
            if axes:
                image, label = image.flip(axes), label.flip(axes)
            if random.random_sample() < SHIFTED:
                image = image + random.uniform(-how.shift, how.shift)
        return image, label

    def _centre(self, case: PreparedCase, random: np.random.RandomState) -> tuple[int, ...]:
        """The centre of a crop: a voxel of a random class (all equally likely), or background."""
        if random.random_sample() < self._how.foreground:
            known = [found for found in case.centres() if len(found)]
            if known:
                found = known[random.randint(len(known))]
                voxel = int(found[random.randint(len(found))])
                return tuple(int(n) for n in np.unravel_index(voxel, case.size))
        for _ in range(TRIES):
            anywhere = tuple(int(random.randint(size)) for size in case.size)
            if case.is_background(anywhere):
                break
        return anywhere


def ahead(jobs: Iterable[Callable[[], Item]], count: int) -> Iterator[Item]:
    """The results of jobs in order, up to `count` of them computed in advance by a thread.

    MONAI's ThreadBuffer is not used: it ends the iteration when the source raises (decision 56).
    """
    if not count:
        yield from (job() for job in jobs)
        return
    coming = iter(jobs)
    pool = ThreadPoolExecutor(1)
    try:
        waiting: deque[Future[Item]] = deque(pool.submit(job) for job in islice(coming, count))
        while waiting:
            item = waiting.popleft().result()
            waiting.extend(pool.submit(job) for job in islice(coming, 1))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def _by_patient(cases: Sequence[PreparedCase], patients: Mapping[str, str]) -> list[np.ndarray]:
    """The positions of every patient's cases."""
    found: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        found.setdefault(patients.get(case.case) or case.case, []).append(number)
    return [np.array(numbers) for numbers in found.values()]


def _first_axis(case: PreparedCase) -> int:
    """The axis of the file's grid that is the first one of the prepared case."""
    if not case.moved or len(case.size) < 3:
        return 0
    return int(np.flatnonzero(io_orientation(case.original_affine)[:, 0] == 0)[0])
