"""Clients that take their steps together on a real GPU, against the workbench and themselves."""

import gc
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.constraints import constraint
from autofedavg.core.forms import Form, reshaped
from autofedavg.core.layout import no_counters
from autofedavg.core.local_rules import Prox
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator import stacking as stacked
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.engines.simulator.stacking import StackedGroup
from autofedavg.federation.client import ClientGroup
from autofedavg.federation.local_training import LocalRequest
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.tasks.cifar.files import LabelledImages
from autofedavg.tasks.cifar.network_input import cifar_loss
from autofedavg.tasks.cifar.site import CifarSite
from autofedavg.tasks.cifar.vgg9 import vgg9

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SIZES = {"a": 200, "b": 64, "c": 333, "d": 130}  # short last batches, and one that is whole
BF16 = Training(
    epochs=2,
    batch_size=64,
    optimiser="sgd",
    learning_rate=0.02,
    weight_decay=1e-3,
    precision="bf16",
)
FLOAT32 = BF16.model_copy(update={"precision": "float32"})


def steady() -> nn.Module:
    """VGG-9 without dropout, whose numbers differ from way to way."""
    network = vgg9(10)
    for module in network.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
    return network


def site(name: str, n: int = 0) -> CifarSite:
    n = n or SIZES[name]
    random = np.random.default_rng(n)
    labels = random.integers(10, size=n).astype(np.uint8)
    shade = (labels * 20)[:, None, None, None]
    images = (random.integers(60, size=(n, 3, 32, 32)) + shade).astype(np.uint8)
    pictures = LabelledImages(images, labels)
    names = [f"{name}-{i}" for i in range(n)]
    return CifarSite(name, pictures, names, pictures, names, 0, False)


def trained(training, device, names=SIZES, build=steady, rounds=1, **how):
    """The bank after so many rounds of everybody's own training, and whether it was together."""
    problem = Problem(build, cifar_loss, {name: site(name) for name in names}, "accuracy")
    seeds = Seeds(4)
    w, _ = problem.initial(seeds)
    with Simulator(problem, training, seeds, device=device, workers=1) as simulator:
        federation = Federation(simulator)
        w = Model(w.values.to(device), w.counters.to(device))
        for t in range(1, rounds + 1):
            trained = federation.local_train(t, w, T=5, **how)
            bank, losses = trained.w_k, trained.losses
            w = bank.combine(torch.full((len(names),), 1 / len(names)))
        together = isinstance(simulator._groups[0], StackedGroup)
        return bank.values.clone().cpu(), losses, together, problem.initial(seeds)[0].values


@pytest.mark.parametrize(
    "how", [{}, {"request": LocalRequest(Prox(mu=0.5))}], ids=["plain", "prox"]
)
def test_as_near_to_float32_as_autocast_is(how) -> None:
    ours, losses, together, start = trained(BF16, "cuda", **how)
    plain, _, alone, _ = trained(BF16.model_copy(update={"batch_size": 64}), "cuda", ["a"], **how)
    exact, wanted, apart, _ = trained(FLOAT32, "cuda", **how)
    assert together
    assert not alone
    assert not apart
    moved = (exact - start).norm(dim=1)
    off = (ours - exact).norm(dim=1) / moved
    autocast = float((plain[0] - exact[0]).norm() / moved[0])
    assert off.max() < 2 * autocast + 0.01, (off, autocast)
    assert all(abs(losses[name] - wanted[name]) < 0.01 for name in SIZES)


def test_the_same_bits_again_and_whoever_else_trains() -> None:
    first, _, together, _ = trained(BF16, "cuda", build=vgg9)
    assert together
    for _ in range(3):
        assert torch.equal(trained(BF16, "cuda", build=vgg9)[0], first)
    pair, _, together, _ = trained(BF16, "cuda", ["b", "c"], build=vgg9)
    assert together
    assert torch.equal(pair, first[[1, 2]])


def grown(training, device, frozen: int, names=SIZES):
    """The bank after a round of networks in the widths that FedMA's matching gives, its start."""
    problem = Problem(steady, cifar_loss, {name: site(name) for name in names}, "accuracy")
    form = Form((47, 79, 143, 150, 271, 300, 527, 640, 10), frozen)
    network = reshaped(steady(), form)
    torch.manual_seed(2)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_uniform_(parameter, a=5**0.5)
    start = Layout.of(network).read(network).values.clone()
    with Simulator(problem, training, Seeds(4), device=device, workers=1) as simulator:
        federation = Federation(simulator)
        w = Model(start.to(device), no_counters(torch.device(device)), form)
        bank = federation.local_train(1, w, T=5).w_k
        group = simulator._groups[0]
        together = isinstance(group, StackedGroup) and group._form == form
        return bank.values.clone().cpu(), start, Layout.of(network).trainable, together


@pytest.mark.parametrize("frozen", [0, 1, 3, 6, 8])
def test_other_widths_and_frozen_layers(frozen) -> None:
    ours, start, trainable, together = grown(BF16, "cuda", frozen)
    plain, *_, alone = grown(BF16, "cuda", frozen, ["a"])
    exact, *_, apart = grown(FLOAT32, "cuda", frozen)
    assert together
    assert not alone
    assert not apart
    assert torch.equal(ours[:, trainable:], start[trainable:].expand(len(SIZES), -1))
    moved = (exact - start).norm(dim=1)
    off = (ours - exact).norm(dim=1) / moved
    autocast = float((plain[0] - exact[0]).norm() / moved[0])
    assert off.max() < 2 * autocast + 0.01, (off, autocast)
    assert torch.equal(grown(BF16, "cuda", frozen)[0], ours)


def test_rounds_go_on_with_the_same_bits() -> None:
    assert torch.equal(
        trained(BF16, "cuda", rounds=3, build=vgg9)[0],
        trained(BF16, "cuda", rounds=3, build=vgg9)[0],
    )


def test_a_steps_memory_is_given_to_nobody_else() -> None:
    """What is allocated between two rounds is still there after the second, in which the steps of
    training and those on beta are replayed."""
    beta = constraint(HOW["gamma"]).initial(len(SIZES))
    with begun() as (federation, w):
        bank = federation.local_train(1, w, T=5).w_k
        federation.share_models(1, bank)
        federation.update_beta(1, 1, beta, **HOW)
        others = [torch.full((2**n,), 7, dtype=torch.uint8, device="cuda") for n in range(10, 29)]
        others += [torch.full((2**20,), 7, dtype=torch.uint8, device="cuda") for _ in range(200)]
        federation.local_train(2, w, T=5)
        federation.update_beta(1, 2, beta, **HOW)
        assert all(bool((other == 7).all()) for other in others)


def test_memory_is_given_back_with_the_simulator() -> None:
    """Without a collection of cycles: the rows of a study are run in one process."""
    beta = constraint(HOW["gamma"]).initial(len(SIZES))

    def work() -> None:
        with begun() as (federation, w):
            bank = federation.local_train(1, w, T=5).w_k
            federation.share_models(1, bank)
            federation.update_beta(1, 1, beta, **HOW)

    work()  # the libraries' own memory
    gc.collect()
    before = torch.cuda.memory_allocated()
    gc.disable()
    try:
        work()
        assert torch.cuda.memory_allocated() <= before
    finally:
        gc.enable()


def test_a_gpu_and_the_cpu_agree_in_the_first_rounds() -> None:
    """In float32 without dropout: within 1e-3 of the way the models went, after two rounds."""
    torch.backends.cudnn.allow_tf32 = False
    few = ["b", "d"]
    here, losses, _, start = trained(FLOAT32, "cuda", few, rounds=2)
    there, wanted, _, _ = trained(FLOAT32, "cpu", few, rounds=2)
    off = (here - there).norm(dim=1) / (there - start).norm(dim=1)
    assert off.max() < 1e-3, off
    assert all(abs(losses[name] - wanted[name]) < 1e-3 for name in few)


def test_dropout_drops_its_share() -> None:
    """Losses with dropout are higher, by about as much as PyTorch's own dropout raises them."""
    with_dropout = trained(BF16, "cuda", build=vgg9)[1]
    own = trained(FLOAT32, "cuda", build=vgg9)[1]
    without = trained(BF16, "cuda")[1]
    assert all(abs(with_dropout[name] - own[name]) < 0.15 for name in SIZES)
    assert with_dropout != without


@pytest.mark.parametrize("layers", [None, "module"])
@pytest.mark.parametrize("gamma", ["softmax", "dirichlet"])
def test_steps_on_beta_are_those_of_clients_who_work_alone(layers, gamma) -> None:
    """In bf16 both ways; the alone way is the workbench's, under autocast."""
    problem = Problem(steady, cifar_loss, {name: site(name) for name in SIZES}, "accuracy")
    seeds = Seeds(4)
    w, layout = problem.initial(seeds)
    P = layout.layers(layers).P if layers else None
    beta = constraint({"name": gamma}).initial(len(SIZES), P)
    how = {"gamma": {"name": gamma}, "layers": layers, "rate": 1.0, "smoothing": 0.5}
    how |= {"mode": "eval", "data": "train"}
    found = []
    with Simulator(problem, BF16, seeds, device="cuda", workers=1) as simulator:
        federation = Federation(simulator)
        bank = federation.local_train(1, Model(w.values.cuda(), w.counters.cuda()), T=5).w_k
        federation.share_models(1, bank)
        together = simulator._groups[0]
        for group in (together, ClientGroup(together._clients)):
            simulator._groups[0] = group
            found.append(federation.update_beta(1, 1, beta, **how))
            again = federation.update_beta(1, 1, beta, **how)
            assert all(torch.equal(again[name], theta) for name, theta in found[-1].items())
    for name in SIZES:
        moved = (found[1][name] - beta).norm()
        assert moved > 0
        assert (found[0][name] - found[1][name]).norm() < 0.05 * moved


@pytest.mark.parametrize("most", [1, 3])
def test_steps_on_beta_do_not_depend_on_how_many_are_taken_at_a_time(most, monkeypatch) -> None:
    everybody = thetas()
    monkeypatch.setattr(stacked, "MOST_SLOTS", most)
    fewer = thetas()
    assert all(torch.equal(fewer[name], theta) for name, theta in everybody.items())


HOW = {"gamma": {"name": "dirichlet"}, "layers": None, "rate": 1.0, "smoothing": 0.0}
HOW |= {"mode": "eval", "data": "train"}


def thetas() -> dict[str, torch.Tensor]:
    """The second of two steps on beta, after a round of training."""
    beta = constraint(HOW["gamma"]).initial(len(SIZES))
    with begun() as (federation, w):
        bank = federation.local_train(1, w, T=5).w_k
        federation.share_models(1, bank)
        federation.update_beta(1, 1, beta, **HOW)
        return federation.update_beta(1, 2, beta, **HOW)


@contextmanager
def begun(names=SIZES, sizes=SIZES):
    """A federation on the GPU, and the model it starts from."""
    sites = {name: site(name, sizes[name]) for name in names}
    problem = Problem(vgg9, cifar_loss, sites, "accuracy")
    w, _ = problem.initial(Seeds(4))
    with Simulator(problem, BF16, Seeds(4), device="cuda", workers=1) as simulator:
        yield Federation(simulator), Model(w.values.cuda(), w.counters.cuda())


def test_steps_on_beta_leave_training_alone() -> None:
    """They share memory with it: a round after them has the bits of one without them."""
    beta = constraint(HOW["gamma"]).initial(len(SIZES))
    banks = []
    for weigh in (False, True):
        with begun() as (federation, w):
            bank = federation.local_train(1, w, T=5).w_k
            if weigh:
                federation.share_models(1, bank)
                federation.update_beta(1, 1, beta, **HOW)
            banks.append(federation.local_train(2, w, T=5).w_k.values.clone())
    assert torch.equal(*banks)


@pytest.mark.parametrize("few", [["b", "c", "d"], list(SIZES)], ids=["fewer", "the same"])
def test_models_of_a_second_round_are_mixed(few) -> None:
    """Of fewer clients, or of the same: the step is that of a federation which had none before."""
    beta = constraint(HOW["gamma"]).initial(len(few))
    with begun() as (federation, w):
        bank = federation.local_train(1, w, T=5).w_k
        federation.share_models(1, bank)
        federation.update_beta(1, 1, constraint(HOW["gamma"]).initial(len(SIZES)), **HOW)
        bank = federation.local_train(2, w, T=5).w_k
        left = Bank.gather({name: bank[name] for name in few})
        federation.share_models(2, left)
        found = federation.update_beta(2, 1, beta, **HOW)
    with begun(few) as (federation, w):
        bank = federation.local_train(2, w, T=5).w_k
        federation.share_models(2, bank)
        wanted = federation.update_beta(2, 1, beta, **HOW)
    assert list(found) == few
    assert all(torch.equal(found[name], theta) for name, theta in wanted.items())


@pytest.mark.parametrize("layers", [None, "module"])
@pytest.mark.parametrize("n", [5, 20])
def test_mixtures_and_slopes_are_those_of_float64(n, layers) -> None:
    """More than sixteen clients need more than one tile of every kernel."""
    sizes = {f"{k:02d}": 64 + k for k in range(n)}
    with begun(sizes, sizes) as (federation, w):
        bank = federation.local_train(1, w, T=5).w_k
        group = federation.transport._groups[0]
        stack, layout = group._stack(None), next(iter(group._clients.values())).trainer.layout
        parts = layout.layers(layers) if layers else None
        shape = (n, n, parts.P) if parts else (n, n)
        sizes = torch.linspace(0.8, 1.2, n, device="cuda")[:, None]  # no model is like another
        work = {k: group._draw(name, 1, 1, "train").batch for name, k in group._number.items()}
        for turn in range(2):  # in the second one the step is replayed
            alpha = torch.rand(shape, generator=torch.Generator().manual_seed(turn))
            alpha = (alpha / alpha.sum(dim=1, keepdim=True)).double()
            values = bank.values * sizes.roll(turn, 0)
            stack.hold(str(turn), values)
            found = stack.weigh(work, alpha, parts).cpu()[:, 1:].view(shape)
            exact = Bank(bank.sites, values.double(), bank.counters)
            for k in range(n):
                mixed = exact.combine(alpha[k].cuda(), parts).values.to(torch.bfloat16)
                off = stack.rows.take(stack.s[k]) != mixed
                assert off.float().mean() < 1e-3  # numbers that round to the other side
                wanted = exact.project(stack.rows.take(stack.g[k]).double(), parts)
                assert (found[k] - wanted).abs().max() < 1e-5 * wanted.abs().max()


def blindly(rounds: int, start: Round | None = None, kept=None) -> tuple[list[Round], tuple]:
    """Rounds of blind learning on the GPU, and what the sites keep after them."""
    problem = Problem(vgg9_of_ten, cifar_loss, {name: site(name) for name in SIZES}, "accuracy")
    seeds, found = Seeds(4), []
    w, layout = problem.initial(seeds)
    method = AutoFedAvg(learning="blind", constraint="softmax", learn_on="train")
    with Simulator(problem, BF16, seeds, device="cuda", workers=1) as simulator:
        assert isinstance(simulator._groups[0], StackedGroup)
        federation = Federation(simulator, seeds=seeds)
        if kept:
            federation.resume_personal(*kept)
        for state in method.rounds(federation, layout, rounds, start or Round(0, w)):
            copied = Model(state.w.values.cpu().clone(), state.w.counters.cpu().clone())
            found.append(replace(state, w=copied))
        assert simulator._groups[0]._said == set()  # nobody trained alone
        return found, (federation.personal, federation.copies())


def vgg9_of_ten() -> nn.Module:
    return vgg9(10)


def test_blind_learning_trains_together_and_continues_with_the_same_bits() -> None:
    whole, _ = blindly(4)
    first, kept = blindly(2)
    rest, _ = blindly(4, first[-1], kept)
    for one, other in zip([*first, *rest], whole, strict=True):
        assert torch.equal(one.w.values, other.w.values)
        assert torch.equal(one.memory["U"], other.memory["U"])
    assert float((whole[-1].memory["U"] - len(SIZES)).abs()) > 1e-3
