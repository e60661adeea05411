"""Table 1's clients on a GPU: training steps against the arithmetic they need; steps on beta."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from autofedavg.algorithm import learn_agg_weight
from autofedavg.core.bank import Model
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Dirichlet
from autofedavg.core.plan import Plan
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.port import Federation
from autofedavg.tasks.cifar.files import LabelledImages
from autofedavg.tasks.cifar.network_input import cifar_loss
from autofedavg.tasks.cifar.site import CifarSite
from autofedavg.tasks.cifar.vgg9 import vgg9
from bench.table import Row, Section
from bench.timing import Sample, interleave

K = 16
CASES = 3125
BATCH = 64
FLOPS = 8.0e16 / 1.56e6  # of a training step of VGG-9, as counted for the whole of Table 1's FedAvg
RATE = 8.0e14  # bf16 matrix products a second, measured on an H200
GAMMA = Dirichlet()
BETA = GAMMA.initial(K)
TITLE = "9. Sixteen clients of VGG-9 on a GPU (bf16, batch 64)"


def measure(epochs: int, S: int, repetitions: int) -> Section:
    """The section; without rows where there is no GPU."""
    if not torch.cuda.is_available():
        return Section(TITLE, [], remark="skipped: no CUDA device here")
    problem, training, seeds = pictures(), sgd(epochs), Seeds(0)
    steps = K * epochs * -(-CASES // BATCH)
    torch.cuda.reset_peak_memory_stats()
    with Simulator(problem, training, seeds, device="cuda") as simulator:
        federation = Federation(simulator)
        start, _ = problem.initial(seeds)
        w = Model(start.values.cuda(), start.counters.cuda())
        bank = federation.local_train(1, w, T=1).w_k
        contestants = {
            "training": lambda: federation.local_train(1, w, T=1),
            "sharing": lambda: learn_agg_weight(federation, _plan(1), 1, bank, BETA),
            "learning": lambda: learn_agg_weight(federation, _plan(1 + S), 1, bank, BETA),
        }
        times = interleave(contestants, repetitions)
    sharing = times.all("sharing")
    train = [seconds / steps for seconds in times.all("training")]
    beta = [
        (whole - one) / S / K for whole, one in zip(times.all("learning"), sharing, strict=True)
    ]
    ratios = [one / other for one, other in zip(beta, train, strict=True)]
    memory = torch.cuda.max_memory_allocated() / 1e9
    rows = [
        Row("a client's training step", _sample(1e6 * t for t in train), "us"),
        Row("images a second, in thousands", _sample(BATCH / t / 1e3 for t in train), "k"),
        Row("over its matrix products at 800 TFLOP/s", _sample(t * RATE / FLOPS for t in train)),
        Row("a client's step on beta over a training step", _sample(ratios), limit=1.25),
        Row("sharing the models, and one step", _sample(1e3 * t for t in sharing), "ms"),
        Row("memory at most", _sample([memory]), "GB", limit=4.0),
    ]
    return Section(TITLE, rows, times.others)


def pictures() -> Problem:
    """Sixteen sites with random pictures and labels, and VGG-9."""
    names = [f"site-{k:02d}" for k in range(K)]
    return Problem(vgg9, cifar_loss, {name: _site(name, k) for k, name in enumerate(names)})


def sgd(epochs: int) -> Training:
    """The training that the kernels of stacked clients are made for."""
    return Training(
        epochs=epochs, batch_size=BATCH, optimiser="sgd", learning_rate=0.01, precision="bf16"
    )


def _sample(values: Iterable[float]) -> Sample:
    return Sample(tuple(values))


def _plan(steps: int) -> Plan:
    optimiser = BetaOptimiser("adam", 0.1)
    return Plan(T=1, t0=1, S=steps, gamma=GAMMA, optimiser=optimiser, data="train")


def _site(name: str, k: int) -> CifarSite:
    random = np.random.default_rng(k)
    images = random.integers(256, size=(CASES, 3, 32, 32)).astype(np.uint8)
    labels = random.integers(10, size=CASES).astype(np.uint8)
    pictures = LabelledImages(images, labels)
    names = [f"{name}-{i}" for i in range(CASES)]
    return CifarSite(name, pictures, names, pictures, names, 0, False)
