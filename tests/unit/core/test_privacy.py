"""A noisy step: one patient's influence is bounded, and the noise is what was accounted for."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from autofedavg.core.errors import ConfigError
from autofedavg.core.noise import BLOCK, NoiseKey
from autofedavg.core.privacy import (
    Bound,
    Patient,
    Privacy,
    PrivateBatch,
    clipped,
    mechanism,
    private_gradient,
    refuse_network,
)
from autofedavg.core.trainer import LocalTrainer, Training
from toy import CPU, cross_entropy, mlp, norm_net, seeded, toy_site

KEY = NoiseKey(b"a site's own")
NUMBERS = st.floats(width=32)
VECTORS = st.lists(NUMBERS, min_size=3, max_size=3).map(torch.tensor)


def silent(count):
    return torch.zeros(count, dtype=torch.float64)


@settings(deadline=None)
@given(vector=VECTORS, most=st.floats(1e-3, 1e3))
def test_a_clipped_vector_is_within_the_bound_whatever_it_was(vector, most):
    found = clipped(vector, most)
    norm = float(torch.linalg.vector_norm(found, dtype=torch.float64))
    assert norm <= most * (1 + 1e-6)
    before = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if before <= most:
        assert torch.equal(found, vector)
    elif math.isfinite(before):
        assert norm == pytest.approx(most, rel=1e-5)
        straight = vector.double() * (most / before)
        assert torch.allclose(found.double(), straight, rtol=1e-4, atol=1e-6 * most)
    else:
        assert not found.any()


@settings(deadline=None)
@given(others=st.lists(VECTORS, max_size=4), patient=VECTORS, place=st.integers(0, 4))
def test_one_patient_more_moves_the_sum_by_at_most_the_bound(others, patient, place):
    bound, expected = Bound(0.7, 1.0), 2.0
    with_it = [*others[:place], patient, *others[place:]]
    sums = [
        private_gradient(vectors, torch.zeros(3), bound, expected, silent) * expected
        for vectors in (others, with_it)
    ]
    assert float(torch.linalg.vector_norm(sums[1] - sums[0])) <= bound.clip * (1 + 1e-5)


def test_the_noise_is_gaussian_and_in_proportion():
    bound, expected, n = Bound(0.5, 3.0), 4.0, 200_000
    found = private_gradient(
        [], torch.zeros(n), bound, expected, lambda count: KEY.normals(count, "noise")
    )
    scale = bound.clip * bound.sigma / expected
    standard = (found / scale).double()
    assert float(standard.mean()) == pytest.approx(0, abs=4 / math.sqrt(n))
    assert float(standard.std()) == pytest.approx(1, abs=4 / math.sqrt(2 * n))
    for z in (-2.0, -1.0, 0.0, 0.5, 1.5, 3.0):
        share, chance = float((standard <= z).double().mean()), 0.5 * math.erfc(-z / math.sqrt(2))
        assert share == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / n))


def test_an_empty_sample_is_noise_alone_divided_by_what_was_expected():
    noise = KEY.normals(5, 1)
    found = private_gradient(
        [], torch.zeros(5), Bound(2.0, 1.5), 4.0, lambda count: KEY.normals(5, 1)
    )
    assert torch.allclose(found, (noise * 3.0 / 4.0).float())


def test_numbers_depend_on_key_and_address_alone():
    assert torch.equal(KEY.normals(7, "a", 1), NoiseKey(b"a site's own").normals(7, "a", 1))
    drawn = [KEY.normals(7, "a", 1), KEY.normals(7, "a", 2), NoiseKey(b"b").normals(7, "a", 1)]
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == 3
    assert KEY.uniforms(0, "a").shape == (0,)
    long = KEY.uniforms(BLOCK + 3, "a")
    assert len(long) == BLOCK + 3
    assert 0 < long.min() < long.max() < 1
    assert not set(long[:3]) & set(long[-3:])
    assert KEY.digest(b"a", b"bc") != KEY.digest(b"ab", b"c")


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_private_step_is_what_a_loop_over_patients_gives(optimiser):
    """Two-layer network, three patients of whom one has two cases, an empty step among four."""
    x, y = toy_site("A", 2, dtype=torch.float64).splits["train"]
    patients = [(x[:1], y[:1]), (x[1:3], y[1:3]), (x[3:4], y[3:4])]
    steps = [[0, 1, 2], [], [1], [0, 2]]
    bound, expected, rate = Bound(0.3, 0.8), 2.0, 0.05
    how = Training(optimiser=optimiser, momentum=0.9, weight_decay=0.01, iterations=4)
    network = seeded(lambda: mlp(torch.float64), 1)
    weights = list(network.parameters())
    kind = (
        torch.optim.SGD(weights, rate, momentum=0.9, weight_decay=0.01)
        if optimiser == "sgd"
        else torch.optim.Adam(weights, rate, how.betas, weight_decay=0.01)
    )
    for s, chosen in enumerate(steps):
        total = [torch.zeros_like(w) for w in weights]
        for i in chosen:
            grads = torch.autograd.grad(cross_entropy(network, patients[i]), weights)
            norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
            for part, g in zip(total, grads, strict=True):
                part += g * min(1.0, bound.clip / norm)
        noise = KEY.normals(sum(w.numel() for w in weights), s) * bound.clip * bound.sigma
        pieces = torch.split(noise, [w.numel() for w in weights])
        for w, part, piece in zip(weights, total, pieces, strict=True):
            w.grad = (part + piece.view_as(w)) / expected
        kind.step()

    trainer = LocalTrainer(seeded(lambda: mlp(torch.float64), 1), cross_entropy, how, CPU)
    batches = [
        PrivateBatch(
            [Patient(0, patients[i]) for i in chosen],
            bound,
            expected,
            lambda count, s=s: KEY.normals(count, s),
        )
        for s, chosen in enumerate(steps)
    ]
    losses = trainer.train(batches, rate)
    assert losses.shape == (4,)
    assert float(losses[1]) == 0.0  # nobody was sampled
    by_hand = torch.cat([w.detach().reshape(-1) for w in weights])
    assert torch.allclose(trainer.flat, by_hand, rtol=0, atol=1e-12)


def test_what_a_network_draws_does_not_depend_on_who_else_was_sampled():
    network = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    x, y = toy_site("A", 2).splits["train"]
    patients = [Patient(10 + i, (x[i : i + 1], y[i : i + 1])) for i in range(3)]

    def gradient(chosen):
        trainer = LocalTrainer(network, cross_entropy, Training(), CPU)
        batch = PrivateBatch([patients[i] for i in chosen], Bound(10.0, 1.0), 1.0, silent)
        trainer.network.train()
        trainer._backward(batch)
        return trainer.gradient.clone()

    alone = [gradient([i]) for i in range(3)]
    assert torch.allclose(gradient([0, 2]), alone[0] + alone[2], atol=1e-6)
    assert torch.allclose(gradient([1, 2]), alone[1] + alone[2], atol=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"theta_clip": 1.0}, "needs both"),
        ({"train_noise": 1.0}, "needs both"),
        ({"train_clip": 1.0, "train_noise": 0.01}, "protects nobody"),
        ({"epsilon": 3.0}, "epsilon has no effect without noise"),
        ({"delta": 1e-4}, "delta has no effect without noise"),
        ({"theta_clip": -1.0}, "greater than or equal to 0"),
        ({"clip": 1.0}, "Extra inputs"),
    ],
)
def test_settings_that_would_protect_nobody_are_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        Privacy(**given)


def test_what_settings_mean():
    off = Privacy()
    assert (off.on, off.theta, off.train) == (False, None, None)
    some = Privacy(theta_clip=0.5, theta_noise=2.0, delta=1e-4)
    assert (some.on, some.theta, some.train) == (True, Bound(0.5, 2.0), None)
    assert Privacy(train_clip=1.0, train_noise=3.0).train == Bound(1.0, 3.0)
    assert mechanism(Bound(1.0, 2.0), 40, 4) == (0.1, 2.0)
    assert mechanism(Bound(1.0, 2.0), 3, 4) == (1.0, 2.0)


def test_running_statistics_are_refused():
    with pytest.raises(ConfigError, match="1 keeps running statistics"):
        refuse_network(norm_net(), "privacy")
    with pytest.raises(ConfigError, match="running statistics"):
        refuse_network(nn.InstanceNorm2d(3, track_running_stats=True), "privacy")
    refuse_network(nn.Sequential(nn.GroupNorm(1, 4), nn.InstanceNorm2d(4)), "privacy")
