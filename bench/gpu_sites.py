"""A round of several sites' 3D training on one GPU: side by side, over one after another."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from autofedavg.algorithm import learn_agg_weight
from autofedavg.core.bank import Model
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Dirichlet
from autofedavg.core.plan import Plan
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.engines.simulator.overlapping import OverlappedGroup
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.client import ClientGroup
from autofedavg.federation.port import Federation
from autofedavg.tasks.imaging.casefolder import PreparedCase, write_case
from autofedavg.tasks.imaging.preparation import CaseArrays
from autofedavg.tasks.imaging.segmentation import SegmentationSite, loss, network
from bench.gpu_volumes import BATCH, HOW
from bench.table import Row, Section
from bench.timing import Run, Sample, interleave

K = 4
CASES = 8  # of each site
GRID = (256, 256, 40)  # voxels of a case, about those of the LGG study
GOAL = 0.5
TITLE = (
    "14. A round of four sites' 3D training on a GPU (section 10's network, crops made on the GPU)"
)


def measure(steps: int, S: int, repetitions: int) -> Section:
    """The section; without rows where there is no GPU."""
    if not torch.cuda.is_available():
        return Section(TITLE, [], remark="skipped: no CUDA device here")
    training = Training(iterations=steps, batch_size=BATCH, precision="bf16")
    with tempfile.TemporaryDirectory() as folder:
        problem = volumes(Path(folder))
        torch.cuda.reset_peak_memory_stats()
        with (
            _simulator(problem, training, ClientGroup) as one,
            _simulator(problem, training, OverlappedGroup) as several,
        ):
            train, learn = _round(problem, one, S)
            train_beside, learn_beside = _round(problem, several, S)
            contestants = {"train": train, "train beside": train_beside}
            contestants |= {"learn": learn, "learn beside": learn_beside}
            times = interleave(contestants, repetitions)
        memory = torch.cuda.max_memory_allocated() / 1e9
        prepared, launched, worked = _parts(problem, training)
    rows = [
        Row("a client's step, one after another", _each(times.all("train"), steps), "ms"),
        Row("a client's step, side by side", _each(times.all("train beside"), steps), "ms"),
        Row("side by side over one after another", times.ratio("train beside", "train"), "", GOAL),
        Row("a client's step on beta, one after another", _each(times.all("learn"), S), "ms"),
        Row("a client's step on beta, side by side", _each(times.all("learn beside"), S), "ms"),
        Row("side by side over one after another", times.ratio("learn beside", "learn")),
        Row("of a step alone: preparing its batch, on the host", prepared, "ms"),
        Row("of a step alone: launching it, on the host", launched, "ms"),
        Row("of a step alone: the GPU's work", worked, "ms"),
        Row("memory of both", Sample((memory,)), "GB", limit=16.0),
    ]
    return Section(TITLE, rows, times.others)


def volumes(folder: Path) -> Problem:
    """Four sites with volumes of noise and a box to be found."""
    names = [f"site-{k}" for k in range(K)]
    sites = {name: _site(name, folder / name, k) for k, name in enumerate(names)}
    return Problem(lambda: network(HOW), loss(HOW), sites, steady=True)


def _site(name: str, folder: Path, k: int) -> SegmentationSite:
    random, cases = np.random.default_rng(k), []
    for number in range(CASES):
        image = random.standard_normal((1, *GRID)).astype(np.float16)
        label = np.zeros(GRID, np.uint8)
        label[80:140, 90:150, 10:25] = 1
        made = CaseArrays(image, np.eye(4), np.eye(4), GRID, False, label, None, ("", ""))
        place = folder / str(number)
        place.mkdir(parents=True)
        write_case(place, made, 1)
        cases.append(PreparedCase(str(number), place))
        cases[-1].hold()
    return SegmentationSite(name, {"train": cases}, HOW, share=1 / K)


def _simulator(
    problem: Problem, training: Training, group: Callable[..., ClientGroup]
) -> Simulator:
    made = Simulator(problem, training, Seeds(0), device="cuda")
    made._groups = [group(made._groups[0]._clients)]
    return made


def _round(problem: Problem, simulator: Simulator, S: int) -> tuple[Run, Run]:
    """Local training of all sites, and S steps on beta with the models that they have then."""
    start, _ = problem.initial(Seeds(0))
    w = Model(start.values.cuda(), start.counters.cuda())
    federation, gamma = Federation(simulator), Dirichlet()
    bank = federation.local_train(1, w, T=1).w_k
    optimiser = BetaOptimiser("adam", 0.1)
    plan = Plan(T=1, t0=1, S=S, gamma=gamma, optimiser=optimiser, data="train")

    def train() -> None:
        federation.local_train(1, w, T=1)
        torch.cuda.synchronize()

    return train, lambda: learn_agg_weight(federation, plan, 1, bank, gamma.initial(K))


def _parts(problem: Problem, training: Training) -> tuple[Sample, Sample, Sample]:
    """Milliseconds of a client's step that is recorded: its batch, its launch, the GPU's work."""
    site = next(iter(problem.sites.values()))
    trainer = LocalTrainer(
        problem.network(), problem.loss, training, torch.device("cuda"), problem.steady
    )
    prepared: list[float] = []
    launched: list[float] = []
    worked: list[float] = []

    def timed() -> Iterable[object]:
        batches = iter(site.train_batches(Seeds(0), 1, training))
        for _ in range(training.iterations):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            batch = next(batches)
            prepared.append(1e3 * (time.perf_counter() - begun))
            torch.cuda.synchronize()
            begun = time.perf_counter()
            yield batch
            launched.append(1e3 * (time.perf_counter() - begun))
            torch.cuda.synchronize()
            worked.append(1e3 * (time.perf_counter() - begun))

    trainer.train(timed(), 1e-4)
    recorded = slice(min(5, training.iterations - 1), None)  # those before it were not replayed
    return (
        Sample(tuple(prepared[recorded])),
        Sample(tuple(launched[recorded])),
        Sample(tuple(worked[recorded])),
    )


def _each(seconds: Iterable[float], steps: int) -> Sample:
    return Sample(tuple(1e3 * one / steps / K for one in seconds))
