"""Randomness by name: no draw depends on what ran before, and nothing global is touched."""

import hashlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autofedavg.core import seeds
from autofedavg.core.seeds import Purpose, Secret, Seeds, every_seed, every_state_kept, global_seed

ADDRESSES = st.tuples(
    st.text(max_size=8), st.sampled_from(Purpose), st.integers(0, 10**6), st.integers(0, 10**6)
)


def test_purposes_are_never_renumbered():
    names = ["INIT", "SPLIT", "TRAIN_BATCHES", "TRANSFORMS", "AGGREGATE_BATCHES", "ALPHA"]
    names += ["NETWORK", "DATA", "MATCHING", "DISTILLATION", "SKETCH"]
    names += ["HALVES", "PRIVACY", "TRIALS"]
    assert [purpose.name for purpose in Purpose] == names
    assert [int(purpose) for purpose in Purpose] == list(range(14))


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


def by_numpy(seed, client, purpose, t, s):
    """The number as NumPy itself makes it."""
    name = int.from_bytes(hashlib.blake2b(client.encode(), digest_size=8).digest(), "big")
    sequence = np.random.SeedSequence(seed, spawn_key=(name, int(purpose), t, s))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


SIZES = st.sampled_from([1, 8, 31, 32, 33, 64, 65, 128, 160])


def whole_numbers():
    """Of any length: NumPy cuts them into words of 32 bits."""
    return SIZES.flatmap(lambda bits: st.integers(2 ** (bits - 1) - 1, 2**bits))


@settings(max_examples=600)
@given(
    seed=whole_numbers(),
    client=st.text(max_size=8),
    purpose=st.sampled_from(Purpose),
    t=whole_numbers(),
    s=whole_numbers(),
)
def test_numbers_are_those_of_numpy_s_seed_sequence(seed, client, purpose, t, s):
    expected = by_numpy(seed, client, purpose, t, s)
    assert Seeds(seed).number(client, purpose, t, s) == expected
    assert Seeds(seed).number(client, purpose, t, s) == expected  # from what is remembered


@pytest.mark.parametrize("address", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_a_negative_number_is_refused(address):
    seed, t, s = address
    with pytest.raises(ValueError, match="expected non-negative integer"):
        Seeds(seed).number("A", Purpose.ALPHA, t, s)


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
    name, words, *others = np.random.get_state()
    return torch.get_rng_state().tolist(), name, words.tolist(), others, random.getstate()


def drawn():
    """Some of everything that other people's code draws without a generator."""
    numbers = [random.random(), random.gauss(0, 1), *np.random.rand(2), *np.random.randn(3)]
    return [*numbers, np.random.randint(10**6), *torch.rand(2).tolist(), *torch.randn(3).tolist()]


def drawn_from(number):
    """The same, from generators seeded as everybody would seed them."""
    before = global_states_kept()
    np.random.seed(number % 2**32)
    random.seed(number)
    torch.manual_seed(number)
    numbers = drawn()
    give_back(before)
    return numbers


def global_states_kept():
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def give_back(kept):
    torch.set_rng_state(kept[0])
    np.random.set_state(kept[1])
    random.setstate(kept[2])


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


@pytest.mark.parametrize("number", [0, 7, 2**32 + 1, 2**63 - 1])
@pytest.mark.parametrize("normals", [0, 1, 2])
@pytest.mark.parametrize("lends", [True, False])
def test_in_a_block_every_generator_is_the_seed_s_and_all_come_back(
    number, normals, lends, monkeypatch
):
    """Also where somebody has drawn one number of NumPy's pairs of normal ones."""
    assert seeds._LENDS, "NumPy has other names now: the quick way is not taken any more"
    monkeypatch.setattr(seeds, "_LENDS", lends)
    np.random.randn(normals)
    before, bits = global_states(), np.random.get_bit_generator()
    with every_seed(number):
        inside = drawn()
    assert global_states() == before
    assert np.random.get_bit_generator() is bits
    assert inside == drawn_from(number)


def test_between_blocks_every_stream_goes_on():
    """What a loss draws between two batches does not depend on the batches."""
    kept = global_states_kept()
    alone = [drawn() for _ in range(4)]
    give_back(kept)
    beside = []
    for step in range(4):
        with every_seed(step):
            drawn()
        beside.append(drawn())
    assert beside == alone


def test_a_block_within_a_block_leaves_the_outer_one_as_it_was():
    with every_seed(3):
        whole = drawn() + drawn()
    with every_seed(3):
        first = drawn()
        with every_seed(4):
            drawn()
        assert first + drawn() == whole


@pytest.mark.parametrize("lends", [True, False])
def test_many_blocks_share_what_is_kept_for_them(lends, monkeypatch):
    """The states come back at the end; each block still begins with its own seed."""
    monkeypatch.setattr(seeds, "_LENDS", lends)
    np.random.randn()
    before = global_states()
    with every_state_kept():
        for number in (5, 6):
            with every_seed(number):
                first = drawn()
                with every_seed(4):
                    assert drawn() == drawn_from(4)
                rest = drawn()
            with every_seed(number):
                assert drawn() + drawn() == first + rest
            with every_state_kept():
                random.random()
    assert global_states() == before
    with every_seed(1):
        drawn()
    assert global_states() == before


def test_what_is_kept_comes_back_after_an_error_too():
    before = global_states()
    with pytest.raises(ZeroDivisionError), every_state_kept(), every_seed(1):
        [number / 0 for number in drawn()]
    assert global_states() == before


def test_every_generator_comes_back_after_an_error_too():
    np.random.randn()
    before = global_states()
    with pytest.raises(ZeroDivisionError), every_seed(1):
        [number / 0 for number in drawn()]
    assert global_states() == before


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
    with pytest.raises(ValueError, match="not a secret"):
        Secret.of(text)
