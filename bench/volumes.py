"""A large 3D step: is one client per worker still better than all cores on one client?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from autofedavg.core.problem import CaseScore, LocalData, Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.simulator import WorkerPlan, is_heavy, plan_workers
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.segmentation import loss, network
from bench.rounds import simulated
from bench.table import Row, Section
from bench.timing import Sample, Times, interleave

CROP = (64, 64, 32)
BATCH = 2
CLIENTS, CORES = 3, 2
DEALT, THREADED, SHARED = WorkerPlan(2, 1), WorkerPlan(1, 2), WorkerPlan(3, 1)


class VolumeSite:
    """A site that trains on one crop over and over: only the step is of interest."""

    def __init__(self, crop: tuple[int, int, int]) -> None:
        image = torch.randn(BATCH, 1, *crop, generator=torch.Generator().manual_seed(0))
        self._batch = (image, (image > 1).float())

    def cases(self) -> Mapping[str, int]:
        return dict.fromkeys(("train", "validation", "test"), BATCH)

    def settle(self, device: torch.device) -> None:
        """The batch stays where it is."""

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


def measure(steps: int, repetitions: int, crop: tuple[int, int, int] = CROP) -> Section:
    """The section: three clients on two cores, dealt out in all ways that make sense."""
    sites: dict[str, LocalData] = {f"site-{k}": VolumeSite(crop) for k in range(CLIENTS)}
    how = Pipeline(roi=crop, channels=(16, 32, 64, 128, 256))
    problem = Problem(lambda: network(how), loss(how), sites)
    training = Training(iterations=steps, batch_size=BATCH)
    default = words(
        plan_workers(CLIENTS, "cpu", CORES, heavy=lambda: is_heavy(problem, training, Seeds(0)))
    )
    with (
        simulated(problem, training, *DEALT) as dealt,
        simulated(problem, training, *SHARED) as shared,
        # Last, for it takes a second thread: nothing may be forked after that.
        simulated(problem, training, *THREADED) as threaded,
    ):
        runs = {words(DEALT): dealt, words(SHARED): shared, words(THREADED): threaded}
        times = interleave(runs, repetitions)
    best = min(runs, key=lambda name: statistics.median(times.all(name)))
    rows = [
        Row(f"{words(DEALT)} over {words(THREADED)}", ratio(times, DEALT, THREADED)),
        Row(f"{words(SHARED)} over {words(THREADED)}", ratio(times, SHARED, THREADED)),
        Row(f"the default ({default}) over the best", times.ratio(default, best), limit=1.05),
    ]
    size = "x".join(map(str, crop))
    title = f"3. A round of three clients on two cores (3D U-Net, crop {size}, batch {BATCH})"
    return Section(title, rows, times.others)


def ratio(times: Times, one: WorkerPlan, other: WorkerPlan) -> Sample:
    return times.ratio(words(one), words(other))


def words(plan: WorkerPlan) -> str:
    plural = ["s" if count > 1 else "" for count in plan]
    return f"{plan.workers} worker{plural[0]} x {plan.threads} thread{plural[1]}"
