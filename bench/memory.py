"""Peak memory, each number from a process of its own that has done nothing else."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from autofedavg.algorithm import Round, auto_fedavg
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Dirichlet
from autofedavg.core.plan import Plan
from autofedavg.core.problem import LocalData, Problem
from autofedavg.core.seeds import Seeds
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.port import Federation
from autofedavg.tasks.cifar.vgg9 import vgg9
from bench import weights
from bench.table import Row, Section
from bench.timing import Sample
from bench.work import TensorSite, cross_entropy, images, sgd

MB = 2**20
ROUND_BATCH = 16
MANY = 64  # clients from which W outweighs what every process holds anyway
EVERY = 0.1  # seconds between two looks at a round


def of_steps(clients: tuple[int, ...]) -> Section:
    """What a step holds beyond W, against a plain step."""
    model = models_bytes(1) / MB
    plain = _step("plain", 0)
    rows = [Row("a plain step", Sample((plain,)), "MB")]
    for K in clients:
        what = f"K = {K} (W itself: {K * model:.0f} MB)"
        rows.append(Row(what, Sample((_step("learning", K),)), "MB", plain + 2 * model))
    for K in clients:
        if K in weights.NAIVE:
            sample = Sample((_step("naive", K),))
            rows.append(Row(f"K = {K}, autograd through the K models", sample, "MB"))
    remark = f"goal: a plain step and two models of {model:.1f} MB more, whatever K is"
    return Section("2b. Peak memory of such a step beyond W itself", rows, remark=remark)


def of_rounds(K: int) -> Section:
    """What a whole round holds, as a multiple of W."""
    whole = models_bytes(K) / MB
    limit = 2.0 if K >= MANY else None
    kinds = (
        (False, 1, "FedAvg, one worker"),
        (False, 2, "FedAvg, two workers"),
        (True, 2, "Auto-FedAvg with weights learned, two workers"),
    )
    rows = [
        Row(f"{K} clients, {words}", Sample((_round(learn, K, workers) / whole,)), limit=limit)
        for learn, workers, words in kinds
    ]
    return Section(f"4. Peak memory of a round over W (VGG-9, W = {whole:.0f} MB)", rows)


def models_bytes(K: int) -> int:
    return 4 * K * sum(parameter.numel() for parameter in vgg9().parameters())


def _step(what: str, K: int) -> float:
    """MB at the peak of a few steps, beyond W and what the process held before them."""
    process, pipe = start(_take_steps, what, K)
    answer: int = pipe.recv()
    process.join()
    return (answer - models_bytes(K)) / MB


def _take_steps(pipe: Connection, what: str, K: int) -> None:
    touch_libraries()
    before = peak()
    if what == "plain":
        run = weights.plain_step()
    elif what == "learning":
        run = weights.learning_step(weights.models(K))
    else:
        run = weights.naive_step(weights.models(K))
    for _ in range(2):
        run()
    pipe.send(peak() - before)


def _round(learn: bool, K: int, workers: int) -> float:
    """MB at the peak of a round in the simulator, its workers included, beyond those before it."""
    process, pipe = start(_run_round, learn, K, workers)
    pipe.recv()
    before = most = _held(process.pid)
    pipe.send(None)
    while not pipe.poll(EVERY):
        most = max(most, _held(process.pid))
    pipe.recv()
    process.join()
    return (most - before) / MB


def _run_round(pipe: Connection, learn: bool, K: int, workers: int) -> None:
    cases = images(ROUND_BATCH)
    names = [f"site-{k:03d}" for k in range(K)]
    sites: dict[str, LocalData] = {name: TensorSite(name, cases) for name in names}
    problem, seeds = Problem(vgg9, cross_entropy, sites), Seeds(0)
    t0 = 1 if learn else 2  # there is one round: its weights are learned, or not
    optimiser = BetaOptimiser("adam", 0.1)
    plan = Plan(T=1, t0=t0, S=1, gamma=Dirichlet(), optimiser=optimiser)
    touch_libraries()
    pipe.send(None)
    pipe.recv()
    w, _ = problem.initial(seeds)
    with Simulator(problem, sgd(ROUND_BATCH), seeds, workers=workers, threads=1) as transport:
        list(auto_fedavg(Federation(transport), plan, Round(0, w)))
    pipe.send(None)


def start(work: Callable[..., None], *args: Any) -> tuple[Any, Connection]:
    """Starts a process from one that has imported this module and nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    near, far = context.Pipe()
    process = context.Process(target=work, args=(far, *args))
    process.start()
    far.close()
    return process, near


def _held(pid: int) -> int:
    """Bytes held by a process, its children and the one it was forked from; shared pages once."""
    process = psutil.Process(pid)
    total = 0
    for each in [process, process.parent(), *process.children()]:
        try:
            total += each.memory_full_info().pss
        except psutil.NoSuchProcess:  # a worker that has just ended
            continue
    return total


def peak() -> int:
    """The largest resident set of this process so far, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("this kernel does not tell VmHWM")


def touch_libraries() -> None:
    """A step of a tiny network, so that code loaded on first use is not counted."""
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    network(torch.randn(4, 3, 8, 8)).sum().backward()
