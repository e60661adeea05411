"""A step of LearnAggWeight over a plain training step, on VGG-9."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from autofedavg.core.bank import Bank, Layout
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Dirichlet
from autofedavg.core.plan import Plan
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import LocalTrainer
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message
from autofedavg.tasks.cifar.vgg9 import vgg9
from bench.table import Row, Section
from bench.timing import Run, interleave
from bench.work import BareLoop, TensorSite, cross_entropy, images, sgd

BATCH = 64
CASES = 512
PLAIN = "plain"
GOALS = {3: 1.05, 16: 1.10, 64: 1.35}
NAIVE = (3, 16)


def measure(clients: tuple[int, ...], repetitions: int) -> Section:
    """The section, timed: all K side by side on rows of one matrix."""
    bank = models(max(clients))
    contestants: dict[str, Run] = {PLAIN: plain_step()}
    contestants |= {f"K = {K}": learning_step(rows_of(bank, K)) for K in clients}
    contestants |= {f"naive {K}": naive_step(rows_of(bank, K)) for K in clients if K in NAIVE}
    times = interleave(contestants, repetitions)
    rows = [Row(f"K = {K}", times.ratio(f"K = {K}", PLAIN), limit=GOALS.get(K)) for K in clients]
    rows += [
        Row(f"K = {K}, autograd through the K models", times.ratio(f"naive {K}", PLAIN))
        for K in clients
        if K in NAIVE
    ]
    return Section(
        "2. A step of LearnAggWeight over a plain step (VGG-9, batch 64)", rows, times.others
    )


def models(K: int) -> Bank:
    """K models of VGG-9 that differ a little: one matrix, filled in place."""
    torch.manual_seed(0)
    network = vgg9()
    layout = Layout.of(network)
    start = layout.read(network).values
    values = torch.empty(K, layout.size)
    for row in values:
        row.normal_(0, 1e-3).add_(start)
    return Bank(tuple(f"site-{k:03d}" for k in range(K)), values, torch.empty(K, 0).long())


def rows_of(bank: Bank, K: int) -> Bank:
    """The first K models, without a copy."""
    return Bank(bank.sites[:K], bank.values[:K], bank.counters[:K])


def plain_step() -> Run:
    """Forward, backward and SGD step on one batch."""
    return BareLoop(vgg9(), images(CASES), [BATCH])


def learning_step(bank: Bank) -> Run:
    """The client's own answer to update_beta: network-wise weights, Dirichlet."""
    trainer = LocalTrainer(vgg9(), cross_entropy, sgd(BATCH), torch.device("cpu"))
    client_state = ClientState()
    client_state.keep_bank(bank, "bench")
    site = bank.sites[0]
    client = Client(site, TensorSite(site, images(CASES)), trainer, Seeds(0), client_state)
    gamma = Dirichlet()
    plan = Plan(T=1, t0=1, S=1, gamma=gamma, optimiser=BetaOptimiser("adam", 0.1))
    facts = {"t": 1, "s": 1, "digest": "bench", **plan.message(1)}
    message = Message({"beta": gamma.initial(len(bank.sites))}, facts)
    return lambda: client.answer("update_beta", message)


def naive_step(bank: Bank) -> Run:
    """The same step with the mixture inside the graph, as one would write it first."""
    network = vgg9().eval()
    layout = Layout.of(network)
    parts = [layout.state_dict(bank[site]) for site in bank.sites]
    data = TensorSite(bank.sites[0], images(CASES))
    gamma = Dirichlet()

    def step() -> Tensor:
        beta = gamma.initial(len(parts)).requires_grad_()
        alpha = torch.distributions.Dirichlet(beta).rsample().float()
        mixed: dict[str, Tensor] = {
            name: sum((alpha[k] * part[name] for k, part in enumerate(parts)), torch.zeros(()))
            for name in layout.names
        }
        batch = data.weight_batch(Seeds(0), 1, 1, "validation", BATCH)
        loss = torch.nn.functional.cross_entropy(
            functional_call(network, mixed, batch[0]), batch[1]
        )
        (slope,) = torch.autograd.grad(loss, beta)
        return slope

    return step
