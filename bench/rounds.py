"""A round of the simulator over the same steps in a bare loop."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

from autofedavg.algorithm import Round
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.port import Federation
from autofedavg.methods.fedavg import FedAvg
from bench.table import Row, Section
from bench.timing import Run, Times, interleave, together
from bench.work import BareLoop, Images, batch_sizes, federated, images, sgd, small_cnn

BATCH = 32
ENDLESS = 1_000_000
ONE, TWO = "one worker", "two workers"
FLOOR, FLOOR_TWICE = "bare loop", "bare loop in two processes"
TWO_CORES = 0.58


def measure(cuts: tuple[int, ...], cases: int, sittings: int, repetitions: int) -> Section:
    """The section: the same images cut into few and many clients."""
    data = images(cases)
    rows: list[Row] = []
    others = []
    for clients in cuts:
        # Made anew for every sitting: where things come to lie in memory is worth some percent.
        times = together([_sitting(data, clients, repetitions) for _ in range(sittings)])
        rows += _rows(clients, times)
        others.append(times.others)
    steps = len(batch_sizes(cases, cuts[0], BATCH))
    title = f"1. A FedAvg round over the same {steps} steps in a bare loop (62 k parameters)"
    return Section(title, rows, max(others))


@contextlib.contextmanager
def simulated(problem: Problem, training: Training, workers: int, threads: int) -> Iterator[Run]:
    """A federation whose every call is one more round: local_train and combine."""
    seeds = Seeds(0)
    w, layout = problem.initial(seeds)
    with Simulator(problem, training, seeds, workers=workers, threads=threads) as transport:
        federation = Federation(transport)
        rounds = FedAvg(weights="even").rounds(federation, layout, ENDLESS, Round(0, w))
        yield rounds.__next__


@contextlib.contextmanager
def in_processes(loops: list[BareLoop]) -> Iterator[Run]:
    """Bare loops that run at the same time, a process each."""
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for loop in loops:
        near, far = context.Pipe()
        process = context.Process(target=_serve, args=(loop, far), daemon=True)
        process.start()
        pipes.append(near)
        processes.append(process)

    def run() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    try:
        yield run
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(False)
            process.join()


def _serve(loop: BareLoop, pipe: Connection) -> None:
    while pipe.recv():
        loop()
        pipe.send(True)


def _sitting(data: Images, clients: int, repetitions: int) -> Times:
    problem, training = federated(data, clients), sgd(BATCH)
    sizes = batch_sizes(len(data[0]), clients, BATCH)
    half = len(sizes) // 2
    halves = [BareLoop(small_cnn(), data, part) for part in (sizes[:half], sizes[half:])]
    with (
        simulated(problem, training, workers=2, threads=1) as two,
        in_processes(halves) as floor_twice,
        simulated(problem, training, workers=1, threads=1) as one,
    ):
        floor = BareLoop(small_cnn(), data, sizes)
        contestants = {FLOOR: floor, ONE: one, TWO: two, FLOOR_TWICE: floor_twice}
        return interleave(contestants, repetitions)


def _rows(clients: int, times: Times) -> list[Row]:
    few = clients <= 16
    return [
        Row(f"{clients} clients, {ONE}", times.ratio(ONE, FLOOR), limit=1.05),
        Row(f"{clients} clients, {TWO}", times.ratio(TWO, FLOOR), limit=TWO_CORES if few else None),
        Row(f"{clients} clients, {TWO} over {ONE}", times.ratio(TWO, ONE), limit=1.0),
        Row(
            f"{clients} clients, {FLOOR_TWICE}: the best there is", times.ratio(FLOOR_TWICE, FLOOR)
        ),
    ]
