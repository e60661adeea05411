"""The resident network trains exactly as an ordinary PyTorch loop does."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from autofedavg.core.bank import Layout
from autofedavg.core.cuda_graphs import Replays
from autofedavg.core.device import checked_device
from autofedavg.core.flat_optimiser import FlatOptimiser
from autofedavg.core.seeds import global_seed
from autofedavg.core.trainer import LocalTrainer, Training
from toy import CPU, cross_entropy, mlp, norm_net, seeded, toy_site

OPTIMISERS = {
    "sgd": Training(optimiser="sgd", momentum=0.9, weight_decay=0.01),
    "plain sgd": Training(optimiser="sgd", momentum=0.0, weight_decay=0.0),
    "adam": Training(optimiser="adam", betas=(0.5, 0.99), weight_decay=0.01),
}
RATE = 0.05


def batches(n=6, dtype=torch.float64):
    x, y = toy_site("A", 2, dtype=dtype).splits["train"]
    return [(x[i : i + 5], y[i : i + 5]) for i in range(n)]


def build(kind, dtype=torch.float64, seed=1):
    return seeded(lambda: kind(dtype), seed)


def torch_optimiser(parameters, settings):
    if settings.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, RATE, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    return torch.optim.Adam(parameters, RATE, settings.betas, weight_decay=settings.weight_decay)


def plain_loop(network, settings, mu=0.0):
    """What a reader would write: one optimiser over the parameters, one step a batch."""
    network.train()
    optimiser = torch_optimiser([p for p in network.parameters() if p.requires_grad], settings)
    start = [p.detach().clone() for p in network.parameters()]
    losses = []
    for batch in batches():
        optimiser.zero_grad()
        loss = cross_entropy(network, batch)
        losses.append(loss.item())
        if mu:
            pairs = zip(network.parameters(), start, strict=True)
            loss = loss + 0.5 * mu * sum((p - p0).square().sum() for p, p0 in pairs)
        loss.backward()
        optimiser.step()
    return losses


def optimiser_of(settings, weights, gradient, in_place=False):
    return FlatOptimiser(
        settings.optimiser,
        weights,
        gradient,
        betas=settings.betas,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        in_place=in_place,
    )


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("settings", list(OPTIMISERS.values()), ids=list(OPTIMISERS))
def test_the_optimiser_has_the_bits_of_pytorchs_own(settings, in_place):
    chance = torch.Generator().manual_seed(0)
    ours = torch.randn(1000, generator=chance)
    theirs = torch.nn.Parameter(ours.clone())
    theirs.grad = torch.zeros(1000)
    made = optimiser_of(settings, ours, theirs.grad, in_place)
    for rate in (0.1, 0.02):
        kind = torch.optim.SGD if settings.optimiser == "sgd" else torch.optim.Adam
        own = {"momentum": settings.momentum} if kind is torch.optim.SGD else {}
        own |= {"betas": settings.betas} if kind is torch.optim.Adam else {}
        own["lr"] = torch.tensor(rate) if in_place else rate
        wanted = kind([theirs], weight_decay=settings.weight_decay, fused=True, **own)
        made.restart(rate)
        for _ in range(3):
            theirs.grad.copy_(torch.randn(1000, generator=chance))
            wanted.step()
            made.step()
            assert torch.equal(ours, theirs.detach())


def trainer(network, settings=OPTIMISERS["sgd"], loss=cross_entropy):
    return LocalTrainer(network, loss, settings, CPU)


@pytest.mark.parametrize("settings", list(OPTIMISERS.values()), ids=list(OPTIMISERS))
@pytest.mark.parametrize("kind", [mlp, norm_net])
def test_training_equals_a_plain_loop(kind, settings):
    plain, bench = build(kind), trainer(build(kind), settings)
    with global_seed(3):
        expected = plain_loop(plain, settings)
    with global_seed(3):
        losses = bench.train(batches(), RATE)
    torch.testing.assert_close(losses.tolist(), expected, rtol=0, atol=1e-12)
    state = bench.layout.state_dict(bench.model())
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", list(OPTIMISERS.values()), ids=list(OPTIMISERS))
def test_fedprox_equals_autograd_of_the_proximal_loss(settings):
    plain, bench = build(mlp), trainer(build(mlp), settings)
    losses = plain_loop(plain, settings, mu=0.7)
    found = bench.train(batches(), RATE, mu=0.7)
    expected = Layout.of(plain).read(plain).values
    torch.testing.assert_close(bench.model().values, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.tolist(), losses, rtol=0, atol=1e-12)
    without = trainer(build(mlp), settings)
    without.train(batches(), RATE)
    assert not torch.allclose(without.model().values, expected, rtol=0, atol=1e-6)


def test_each_round_starts_with_a_fresh_optimiser():
    for settings in OPTIMISERS.values():
        bench = trainer(build(mlp), settings)
        start = bench.model()
        bench.train(batches(), RATE)
        first = bench.model()
        bench.load(start)
        bench.train(batches(), RATE)
        assert torch.equal(bench.model().values, first.values)


def test_the_step_size_is_the_one_given():
    slow, fast = trainer(build(mlp)), trainer(build(mlp))
    start = slow.model().values
    slow.train(batches(1), 0.1)
    fast.train(batches(1), 0.2)
    moved = fast.model().values - start, slow.model().values - start
    torch.testing.assert_close(moved[0], 2 * moved[1])


def test_no_batch_is_no_step():
    bench = trainer(build(mlp))
    before = bench.model().values
    assert bench.train([], RATE).shape == (0,)
    assert torch.equal(bench.model().values, before)


@pytest.mark.parametrize("kind", [mlp, norm_net])
def test_loading_and_reading_back(kind):
    bench, other = trainer(build(kind)), build(kind, seed=2)
    bench.train(batches(), RATE)
    model = Layout.of(other).read(other)
    bench.load(model)
    assert torch.equal(bench.model().values, model.values)
    assert torch.equal(bench.model().counters, model.counters)
    for name, tensor in other.state_dict().items():
        assert torch.equal(bench.network.state_dict()[name], tensor)


def test_a_model_that_was_read_stays_as_it_was():
    bench = trainer(build(norm_net))
    model = bench.model()
    kept = model.clone()
    bench.train(batches(), RATE)
    assert torch.equal(model.values, kept.values)
    assert torch.equal(model.counters, kept.counters)
    assert bench.model().counters.tolist() == [6]


def test_frozen_parameters_stay():
    network = build(mlp)
    network[0].weight.requires_grad_(False)
    before = network[0].weight.clone()
    bench = trainer(network)
    bench.train(batches(), RATE)
    assert torch.equal(bench.network[0].weight, before)
    state = bench.layout.state_dict(bench.model())
    assert torch.equal(state["0.weight"], before)
    assert not torch.equal(state["2.weight"], build(mlp)[2].weight)


def test_tied_parameters_train_as_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    plain = seeded(lambda: Tied().double(), 1)
    bench = trainer(seeded(lambda: Tied().double(), 1))
    plain_loop(plain, OPTIMISERS["sgd"])
    bench.train(batches(), RATE)
    expected = Layout.of(plain).read(plain).values
    torch.testing.assert_close(bench.model().values, expected, rtol=0, atol=1e-12)
    assert bench.network.b.weight is bench.network.a.weight


class Flagged(nn.Module):
    """Buffers of every kind: saved and not, floating and whole numbers of several types."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int32))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("grid", torch.arange(3.0), persistent=False)

    def forward(self, x):
        self.seen += 1
        return self.linear(x) * self.scale + self.grid


def test_buffers_of_every_kind_are_kept_and_put_back():
    bench = trainer(seeded(Flagged, 1))
    start = bench.model()
    bench.train(batches(2, torch.float32), RATE)
    assert bench.network.seen.item() == 2
    assert bench.network.seen.dtype == torch.int32
    assert bench.network.flags.tolist() == [True, False]
    assert bench.network.grid.tolist() == [0.0, 1.0, 2.0]
    bench.load(start)
    assert bench.network.seen.item() == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint8])
def test_counters_are_int64_whatever_the_buffers_are(dtype):
    network = nn.Linear(4, 3)
    network.register_buffer("whole", torch.ones(2, dtype=dtype))
    found = trainer(network).model().counters
    assert found.dtype == torch.int64
    assert found.tolist() == [1, 1]


def test_buffers_remain_views_of_the_flat_state():
    bench = trainer(build(norm_net))
    bench.train(batches(), RATE)
    state = bench.layout.state_dict(bench.model())
    assert torch.equal(state["1.running_mean"], bench.network[1].running_mean)
    assert bool((state["1.running_mean"] != 0).any())


# --- differentiate --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_gradient_is_autograd_s_in_either_mode(mode):
    network, bench = build(norm_net), trainer(build(norm_net, seed=2))
    model = Layout.of(network).read(network)
    (batch,) = batches(1)
    network.train(mode == "train")
    with global_seed(5):
        loss = cross_entropy(network, batch)
    loss.backward()
    expected = torch.cat([p.grad.reshape(-1) for p in network.parameters()])
    with global_seed(5):
        gradient, found = bench.differentiate(model, batch, mode)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(found, loss.detach(), rtol=0, atol=1e-13)


def test_gradients_do_not_add_up_over_calls():
    bench = trainer(build(mlp))
    model, (batch,) = bench.model(), batches(1)
    once = bench.differentiate(model, batch, "eval")[0].clone()
    assert torch.equal(bench.differentiate(model, batch, "eval")[0], once)


def test_differentiating_takes_no_step():
    bench = trainer(build(mlp))
    model = bench.model()
    bench.differentiate(model, batches(1)[0], "eval")
    assert torch.equal(bench.model().values, model.values)


# --- precision and schedule -----------------------------------------------------------------------


def test_bf16_computes_in_bfloat16_and_keeps_float32_weights():
    seen = []

    def loss(network, batch):
        x, y = batch
        output = network(x)
        seen.append(output.dtype)
        return nn.functional.cross_entropy(output, y)

    def trained(precision):
        settings = Training(optimiser="sgd", precision=precision)
        bench = trainer(build(mlp, torch.float32), settings, loss)
        losses = bench.train(batches(dtype=torch.float32), RATE)
        assert bool(torch.isfinite(losses).all())
        return bench.model().values

    exact, rough = trained("float32"), trained("bf16")
    assert set(seen[:6]) == {torch.float32}
    assert set(seen[6:]) == {torch.bfloat16}
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0, atol=0.02)


def test_a_constant_schedule_is_the_learning_rate():
    assert {Training(learning_rate=0.3).rate(t, 10) for t in range(1, 11)} == {0.3}


def test_the_cosine_schedule_starts_full_and_falls():
    training = Training(learning_rate=0.3, schedule="cosine")
    rates = [training.rate(t, 4) for t in range(1, 5)]
    expected = [0.15 * (1 + math.cos(math.pi * i / 4)) for i in range(4)]
    assert rates == pytest.approx(expected)
    assert rates[0] == 0.3


def test_a_training_setting_that_does_not_exist_is_refused():
    with pytest.raises(ValidationError, match="learning_rates"):
        Training(learning_rates=0.1)


def test_training_goes_by_iterations_or_by_epochs():
    assert (Training().iterations, Training().epochs) == (300, 0)
    assert (Training(epochs=2).iterations, Training(epochs=2).epochs) == (0, 2)
    for wrong in ({"iterations": 5, "epochs": 2}, {"iterations": 0}):
        with pytest.raises(ValidationError, match="set either iterations or epochs"):
            Training(**wrong)


class NeverRecorded(Replays):
    """Does every step, as on a GPU before one is recorded."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self._able = False


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("settings", list(OPTIMISERS.values()), ids=list(OPTIMISERS))
def test_an_optimiser_that_stays_in_place_is_as_good_as_a_fresh_one(settings, mu):
    """A recorded step knows places, not values: nothing may be thrown away between rounds."""
    fresh, staying = (trainer(build(mlp, torch.float32), settings) for _ in range(2))
    staying._replays = NeverRecorded()
    staying._optimiser = optimiser_of(settings, staying.flat, staying.gradient, in_place=True)
    start = fresh.model()
    for rate in (0.05, 0.01, 0.02):
        for bench in (fresh, staying):
            bench.load(start)
        wanted = fresh.train(batches(dtype=torch.float32), rate, mu=mu)
        found = staying.train(batches(dtype=torch.float32), rate, mu=mu)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(staying.model().values, fresh.model().values)
    places = [tensor.data_ptr() for tensor in staying._optimiser.state()]
    pulled = {name: place.data_ptr() for name, place in staying._places.items()}
    staying.train(batches(dtype=torch.float32), 0.1, mu=mu)
    assert places == [tensor.data_ptr() for tensor in staying._optimiser.state()]
    assert pulled == {name: place.data_ptr() for name, place in staying._places.items()}


def test_a_gpu_of_several_is_the_processs_own_from_then_on(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert checked_device("cuda:1") == torch.device("cuda:1")
    assert checked_device("cuda") == torch.device("cuda")
    assert checked_device("cpu") == CPU
    assert chosen == [torch.device("cuda:1")]


@pytest.mark.parametrize("betas", [(1.0, 0.999), (0.9, -0.1)])
def test_decay_rates_of_adam_lie_below_one(betas):
    with pytest.raises(ValidationError, match="betas must lie between 0 and 1"):
        Training(iterations=1, betas=betas)
