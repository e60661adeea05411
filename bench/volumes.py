"""A large 3D step: is one client per worker still better than all cores on one client?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from autofedavg.client import CaseScore, LocalData, Problem
from autofedavg.engines.simulator import Hands, choose_hands
from autofedavg.seeds import Seeds
from autofedavg.tasks.segmentation import dice_loss, unet
from autofedavg.workbench import Training
from bench.rounds import simulated
from bench.table import Row, Section
from bench.timing import interleave

CHANNELS = (16, 32, 64, 128, 256)
CROP = (64, 64, 32)
BATCH = 2
CLIENTS, CORES = 3, 2
AT_ONCE, IN_TURN = Hands(workers=2, threads=1), Hands(workers=1, threads=2)


class VolumeSite:
    """A site that trains on one crop over and over: only the step is of interest."""

    def __init__(self) -> None:
        image = torch.randn(BATCH, 1, *CROP, generator=torch.Generator().manual_seed(0))
        self._batch = (image, (image > 1).float())

    def cases(self) -> Mapping[str, int]:
        return dict.fromkeys(("train", "validation", "test"), BATCH)

    def train_batches(
        self, seeds: Seeds, t: int, training: Training
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(training.iterations):
            yield self._batch

    def weight_batch(
        self, seeds: Seeds, t: int, s: int, split: str, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        return self._batch

    def score(self, network: nn.Module, split: str) -> list[CaseScore]:
        raise NotImplementedError


def measure(steps: int, repetitions: int) -> Section:
    """The section: three clients on two cores, both ways."""
    sites: dict[str, LocalData] = {f"site-{k}": VolumeSite() for k in range(CLIENTS)}
    problem = Problem(lambda: unet(CHANNELS), dice_loss, sites)
    training = Training(iterations=steps, batch_size=BATCH)
    with (
        simulated(problem, training, *AT_ONCE) as at_once,
        simulated(problem, training, *IN_TURN) as in_turn,
    ):
        times = interleave({"at once": at_once, "in turn": in_turn}, repetitions)
    default = choose_hands(K=CLIENTS, device="cpu", cores=CORES)
    ratio = times.ratio("at once", "in turn")
    chosen = default == AT_ONCE
    if not chosen:
        ratio = times.ratio("in turn", "at once")
    what = f"{_words(default)} (the default) over {_words(IN_TURN if chosen else AT_ONCE)}"
    title = "3. A round of three clients on two cores (3D U-Net, crop 64x64x32, batch 2)"
    return Section(title, [Row(what, ratio, limit=1.0)], times.others)


def _words(hands: Hands) -> str:
    return f"{hands.workers} x {hands.threads} thread{'s' * (hands.threads > 1)}"
