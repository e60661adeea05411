"""Randomness by name: no draw depends on what ran before, and nothing global is touched."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.seeds import Purpose, Secret, Seeds, global_seed

ADDRESSES = st.tuples(
    st.text(max_size=8), st.sampled_from(Purpose), st.integers(0, 10**6), st.integers(0, 10**6)
)


def test_purposes_are_never_renumbered():
    names = ["INIT", "SPLIT", "TRAIN_BATCHES", "TRANSFORMS", "AGGREGATE_BATCHES", "ALPHA"]
    assert [purpose.name for purpose in Purpose] == [*names, "NETWORK", "DATA", "MATCHING"]
    assert [int(purpose) for purpose in Purpose] == list(range(9))


def test_numbers_are_never_changed():
    """They are part of every published result."""
    assert Seeds(0).number("A", Purpose.ALPHA, 1, 2) == 3026686086537486167
    assert Seeds(7).number("server", Purpose.INIT) == 1005369190348994682
    assert Seeds(0).numpy("A", Purpose.TRANSFORMS, 1).randint(10**6) == 584887


@given(one=ADDRESSES, other=ADDRESSES, seed=st.integers(0, 2**32))
def test_every_address_has_a_number_of_its_own(one, other, seed):
    seeds = Seeds(seed)
    assert (seeds.number(*one) == seeds.number(*other)) == (one == other)
    assert 0 <= seeds.number(*one) < 2**63


def test_every_seed_has_streams_of_its_own():
    numbers = {Seeds(seed).number("A", Purpose.ALPHA, 1, 1) for seed in range(100)}
    assert len(numbers) == 100


def test_streams_do_not_resemble_each_other():
    draws = [
        torch.rand(2000, generator=Seeds(0).generator("A", p, t)) for p in Purpose for t in (1, 2)
    ]
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws))
    assert correlation.abs().max() < 0.12


def test_the_order_of_asking_does_not_matter():
    addresses = [(name, purpose, t) for name in "AB" for purpose in Purpose for t in (0, 1)]
    forth = {a: torch.rand(3, generator=Seeds(5).generator(*a)) for a in addresses}
    seeds = Seeds(5)
    back = {a: torch.rand(3, generator=seeds.generator(*a)) for a in reversed(addresses)}
    assert all(torch.equal(forth[a], back[a]) for a in addresses)


def test_numpy_states_are_repeatable_and_apart():
    seeds = Seeds(0)
    first = seeds.numpy("A", Purpose.TRANSFORMS, 1, 2).rand(4)
    assert np.array_equal(seeds.numpy("A", Purpose.TRANSFORMS, 1, 2).rand(4), first)
    assert not np.array_equal(seeds.numpy("A", Purpose.TRANSFORMS, 2, 1).rand(4), first)


def global_states():
    state = np.random.get_state()
    return torch.get_rng_state().tolist(), state[1].tolist(), state[2], random.getstate()


def test_nothing_global_is_touched():
    before = global_states()
    seeds = Seeds(3)
    torch.rand(3, generator=seeds.generator("A", Purpose.ALPHA))
    seeds.numpy("A", Purpose.ALPHA).rand(3)
    with global_seed(3):
        torch.rand(3)
    assert global_states() == before


def test_the_block_s_draws_are_the_seed_s_and_the_rest_goes_on():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first, second = torch.rand(1), torch.rand(1)
        torch.manual_seed(1)
        assert torch.equal(torch.rand(1), first)
        with global_seed(42):
            inside = torch.rand(5)
        assert torch.equal(torch.rand(1), second)
    expected = torch.rand(5, generator=torch.Generator().manual_seed(42))
    assert torch.equal(inside, expected)


def test_the_global_state_comes_back_after_an_error_too():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), global_seed(1):
        torch.rand(1).div_(1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_cpu_needs_no_cuda_generator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda number: pytest.fail("CUDA was seeded"))
    with global_seed(1, torch.device("cpu")):
        torch.rand(1)


def test_on_a_gpu_its_generator_is_forked_and_seeded(monkeypatch):
    forked, seeded = [], []
    fork = torch.random.fork_rng
    monkeypatch.setattr(
        torch.random, "fork_rng", lambda devices: forked.append(devices) or fork(devices=[])
    )
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    device = torch.device("cuda", 1)
    with global_seed(9, device):
        pass
    assert forked == [[device]]
    assert seeded == [9]


ALPHA = ("server", Purpose.ALPHA)


def test_a_secret_draws_the_same_again_and_is_told_by_its_text():
    secret = Secret(2**255 + 17)
    again = Secret.of(secret.text)
    assert again == secret
    draws = [torch.rand(5, generator=s.generator(*ALPHA, 1, 2)) for s in (secret, again)]
    assert torch.equal(*draws)
    assert draws[0][:2].tolist() == [0.6613971590995789, 0.08409732580184937]


def test_all_bits_of_a_secret_count():
    """`manual_seed` would take the last 32 of its own."""
    one, other = Secret(1), Secret(1 + 2**200)
    assert not torch.equal(
        torch.rand(5, generator=one.generator(*ALPHA)),
        torch.rand(5, generator=other.generator(*ALPHA)),
    )


def test_a_secrets_streams_are_uniform_and_do_not_resemble_each_other():
    draws = torch.stack(
        [torch.rand(4000, generator=Secret(5).generator(*ALPHA, t)) for t in range(12)]
    )
    assert (draws.mean(dim=1) - 0.5).abs().max() < 0.03
    assert (draws.var(dim=1) - 1 / 12).abs().max() < 0.01
    assert (torch.corrcoef(draws) - torch.eye(12)).abs().max() < 0.08


def test_no_two_secrets_are_the_same():
    made = {Secret.new().text for _ in range(100)}
    assert len(made) == 100
    assert all(len(text) == 64 for text in made)


@pytest.mark.parametrize("text", ["", "1" * 63, "g" * 64, "1" * 65, "A" * 64])
def test_what_is_no_secret_is_refused(text):
    with pytest.raises(ValueError, match="no secret"):
        Secret.of(text)
