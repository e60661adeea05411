"""Server rules on a GPU: a round of each over a round of FedAvg, with all clients stacked."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.seeds import Seeds
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.port import Federation
from autofedavg.methods import METHODS
from bench.gpu import pictures, sgd
from bench.table import Row, Section
from bench.timing import interleave

FEDAVG = "fedavg"
# They ask sites for plain training, so that the stack does all of it.
SERVER_RULES = (
    "median", "trimmed-mean", "geometric-median", "multi-krum", "fedavgm", "fedadam", "fedexp",
    "fednova", "fedawa", "fedlws", "l-dawa",
)  # fmt: skip
ALONE = ("scaffold",)  # its local rule is not the stack's: one client after another
GOAL = 1.25
TITLE = "13. A round of a server rule on a GPU, over a round of FedAvg (section 9's clients)"


def measure(repetitions: int) -> Section:
    """The section; without rows where there is no GPU."""
    if not torch.cuda.is_available():
        return Section(TITLE, [], remark="skipped: no CUDA device here")
    problem, seeds = pictures(), Seeds(0)
    with Simulator(problem, sgd(epochs=1), seeds, device="cuda") as simulator:
        federation = Federation(simulator, seeds=seeds, metric=problem.metric)
        start, layout = problem.initial(seeds)
        w = Model(start.values.cuda(), start.counters.cuda())
        names = (FEDAVG, *SERVER_RULES, *ALONE)
        contestants = {name: _round(name, federation, layout, w) for name in names}
        times = interleave(contestants, repetitions)
    rows = [
        Row(name, times.ratio(name, FEDAVG), limit=GOAL if name in SERVER_RULES else None)
        for name in (*SERVER_RULES, *ALONE)
    ]
    remark = f"{', '.join(ALONE)}: one client after another, for comparison"
    return Section(TITLE, rows, times.others, remark)


def _round(name: str, federation: Federation, layout: Layout, w: Model) -> Callable[[], object]:
    """Round 1 of a method, always from the same model."""

    def run() -> None:
        next(METHODS[name]().rounds(federation, layout, 2, Round(0, w)))
        torch.cuda.synchronize()

    return run
