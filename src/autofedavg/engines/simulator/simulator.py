"""All clients on one machine: no sockets, no serialisation, one resident network per worker.

With one worker the clients live in this process. With more, each worker is a forked process that
owns some of the clients; models lie in memory all of them share, and only requests travel. A
client's numbers depend on `threads` alone, never on how many workers there are (decision 13).
"""

from __future__ import annotations

import atexit
import logging
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from autofedavg.core.device import checked_device
from autofedavg.core.errors import AutoFedAvgError, ConfigError
from autofedavg.core.privacy import NONE, Privacy
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Purpose, Seeds, global_seed
from autofedavg.core.site import Site
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.engines.simulator.stacking import group_of
from autofedavg.engines.simulator.workers import Arena, Worker, gradients_after_fork
from autofedavg.federation.client import Client
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.private_steps import simulated_privacy

log = logging.getLogger(__name__)

THREADS_PAY = 0.85  # what is left of a core's work each time threads are doubled, for heavy steps
HEAVY = 5e8  # floating-point operations of a step, forward and backward


class WorkerPlan(NamedTuple):
    """How many workers, and how many threads each."""

    workers: int
    threads: int


def plan_workers(
    K: int,
    device: str,
    cores: int,
    workers: int | None = None,
    threads: int | None = None,
    heavy: Callable[[], bool] = lambda: False,
) -> WorkerPlan:
    """Workers of one thread, one per core; one of many threads if heavy clients leave cores idle.

    `threads` is chosen from K, the machine and the steps, never from `workers`: threads change
    the last bits of a convolution, and workers must not.

    Args:
        K: number of clients.
        device: "cpu", or a GPU, which one process drives alone; its workers are sites side by side.
        cores: that may be used.
        workers: the user's choice, if any.
        threads: the user's choice, if any.
        heavy: whether a training step is heavy enough for threads to pay; asked only if it matters.

    Example:
        >>> plan_workers(K=16, device="cpu", cores=2)
        WorkerPlan(workers=2, threads=1)
        >>> plan_workers(K=3, device="cpu", cores=2)
        WorkerPlan(workers=3, threads=1)
        >>> plan_workers(K=3, device="cpu", cores=16, heavy=lambda: True)
        WorkerPlan(workers=1, threads=16)
        >>> plan_workers(K=4, device="cuda", cores=16, workers=4)
        WorkerPlan(workers=4, threads=16)
    """
    for name, given in (("workers", workers), ("threads", threads)):
        if given is not None and given < 1:
            raise ConfigError(f"{name} is {given}", where=name, remedy="use 1 or more")
    alone = device != "cpu" or not can_fork()
    if threads is None:
        threads_worth = cores * THREADS_PAY ** math.log2(cores)
        threads = cores if alone or (threads_worth > K and heavy()) else 1
    if workers is None:
        # Few clients that cannot be dealt out evenly get a worker each: the system shares the
        # cores among three processes better than we could deal three clients to two.
        uneven = K % cores != 0 and 4 * cores > K
        workers = 1 if alone or threads > 1 else K if uneven else min(K, cores)
    if workers > 1 and device == "cpu" and (alone or threads > 1):
        raise ConfigError(
            f"{workers} workers cannot be used with {threads} threads on {device}",
            where="workers",
            remedy="use 1 worker, or --threads 1 on the CPU: a forked process cannot start threads",
        )
    return WorkerPlan(workers, threads)


def usable_cores() -> int:
    """Cores this process may use: its affinity, and a container's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        most, _, period = quota.read_text().partition(" ")
        if most != "max":
            cores = min(cores or 1, max(1, int(most) // int(period)))
    return cores or 1


def is_heavy(problem: Problem, training: Training, seeds: Seeds) -> bool:
    """Whether a training step has enough arithmetic for threads to pay."""
    site = next(iter(problem.roster())).name
    with global_seed(seeds.number(site, Purpose.NETWORK)), FlopCounterMode(display=False) as count:
        for batch in problem.sites[site].train_batches(seeds, 1, training):
            problem.loss(problem.network(), batch)
            break
    return bool(3 * count.get_total_flops() > HEAVY)


def can_fork() -> bool:
    """Whether worker processes can be had here."""
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


def forkable(plan: WorkerPlan, chosen: bool) -> WorkerPlan:
    """The same, or one worker of as many threads where forked processes could not train.

    Raises:
        ConfigError: they could not, and the user has `chosen` the workers.
    """
    if gradients_after_fork():
        return plan
    why = (
        "a process forked from this one could not take gradients: PyTorch has taken some here "
        "with a GPU in sight"
    )
    if chosen:
        raise ConfigError(why, where="workers", remedy="use 1 worker, or a process of its own")
    log.warning("1 worker instead of %d: %s", plan.workers, why)
    return WorkerPlan(1, plan.threads)


class Simulator:
    """The transport to simulated clients; a context manager, so that workers end with it.

    Args:
        problem: network, loss and data of every site.
        training: how clients train.
        seeds: the run's random streams.
        workers: worker processes; chosen by itself when None.
        threads: threads per worker; chosen by itself when None.
        device: "cpu", "cuda" or "cuda:1".
        privacy: the noise on clients' steps. It comes from the seeds: reproducible, and so no
            protection beyond the simulation.
    """

    def __init__(
        self,
        problem: Problem,
        training: Training,
        seeds: Seeds,
        *,
        workers: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        privacy: Privacy = NONE,
    ) -> None:
        self._sites = problem.roster()
        if not self._sites:
            raise ConfigError("there is no site to train on", where="sites")
        self.device = checked_device(device)
        plan = plan_workers(
            len(self._sites),
            self.device.type,
            usable_cores(),
            workers,
            threads,
            lambda: is_heavy(problem, training, seeds),
        )
        forked = plan.workers > 1 and self.device.type == "cpu"
        self.plan = forkable(plan, chosen=workers is not None) if forked else plan
        with global_seed(0):
            network = problem.network()
        trainer = LocalTrainer(network, problem.loss, training, self.device, problem.steady)
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(self.plan.threads)
        names, forked = [site.name for site in self._sites], forked and self.plan.workers > 1
        self._arena = arena = Arena(names, trainer.layout, self.device, forked)
        clients = {
            name: Client(
                name,
                problem.sites[name],
                trainer,
                seeds,
                arena.client_state(name),
                simulated_privacy(name, problem.sites[name], seeds, privacy, training),
                masked=False,
            )
            for name in names
        }
        shares = share_out(self._sites, self.plan.workers if forked else 1, training)
        beside = 1 if forked else self.plan.workers
        self._groups = [group_of({name: clients[name] for name in s}, beside) for s in shares]
        self._workers = [Worker(group, arena) for group in self._groups if forked]
        atexit.register(self.close)
        log.info("%d workers of %d threads for %d clients", *self.plan, len(names))

    def roster(self) -> Sequence[Site]:
        return self._sites

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        if not self._workers:
            return self._groups[0].answer(verb, messages)
        packed = self._arena.pack(verb, messages)
        busy = [worker for worker in self._workers if worker.send(verb, packed)]
        asked = time.monotonic()
        answers: dict[str, Message | NoReply] = {}
        failure: AutoFedAvgError | None = None
        for worker in busy:
            try:
                answers.update(worker.receive(within, asked))
            except AutoFedAvgError as error:
                failure = failure or error
        if failure:
            raise failure
        return answers

    def close(self, at_once: bool = False) -> None:
        """Ends the workers, `at_once` even if they are busy, and gives back the threads."""
        for worker in self._workers:
            worker.close(at_once)
        self._workers = []
        atexit.unregister(self.close)
        torch.set_num_threads(self._threads_before)

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        self.close(at_once=failure is not None)


def share_out(sites: Sequence[Site], workers: int, training: Training) -> list[list[str]]:
    """Deals clients to workers, the longest jobs first, so that all end at about the same time."""
    per_step, epochs = training.iterations * training.batch_size, training.epochs
    cost = {
        # Cases seen in a round; a forward pass is a third of a step.
        site.name: (epochs * site.cases["train"] or per_step)
        + 2 * site.cases.get("validation", 0) / 3
        for site in sites
    }
    piles: list[list[str]] = [[] for _ in range(min(workers, len(sites)))]
    loads = [0.0] * len(piles)
    for name in sorted(cost, key=lambda name: (-cost[name], name)):
        lightest = loads.index(min(loads))
        piles[lightest].append(name)
        loads[lightest] += cost[name]
    return [sorted(pile) for pile in piles]
