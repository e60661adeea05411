"""Masks are random to everybody but the two sites, and cancel bit for bit in the sum of all."""

import importlib
import sys
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import Diverged, MissingExtra, TrainingError
from autofedavg.federation.fixed_point import (
    NARROW,
    WIDE,
    from_fixed,
    largest,
    scale_of,
    summed,
    to_fixed,
)
from autofedavg.federation.masks import Address, MaskKey

SITES = ("A", "B", "C", "D")
KEYS = {site: MaskKey.new() for site in SITES}
PUBLIC = {site: key.public for site, key in KEYS.items()}
AT = Address(3, "local_train", 1)


def numbers(seed: int, n: int = 4000) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return {
        "narrow": torch.randint(-(2**20), 2**20, (n,), generator=chance, dtype=torch.int32),
        "wide": torch.randint(-(2**50), 2**50, (7,), generator=chance, dtype=torch.int64),
    }


def masked(sites=SITES, at=AT) -> dict[str, dict[str, torch.Tensor]]:
    keys = {site: PUBLIC[site] for site in sites}
    return {s: KEYS[s].masked(numbers(k), s, keys, at) for k, s in enumerate(sites)}


@pytest.mark.parametrize("sites", [SITES, SITES[:3], SITES[1:]])
def test_they_cancel_bit_for_bit_in_the_sum_of_all(sites):
    found, plain = summed(masked(sites).values()), summed(map(numbers, range(len(sites))))
    assert all(torch.equal(found[name], plain[name]) for name in plain)
    assert {found[name].dtype for name in found} == {torch.int32, torch.int64}


def test_no_other_sum_shows_anything():
    parts = masked()
    plain = {site: numbers(k) for k, site in enumerate(SITES)}
    for size in (1, 2, 3):
        for some in combinations(SITES, size):
            total = summed(parts[site] for site in some)["narrow"]
            truth = summed(plain[site] for site in some)["narrow"]
            assert_random(total)
            assert_random(total - truth)


def assert_random(array: torch.Tensor) -> None:
    """Uniform over all integers, as far as its mean and its bits tell; nothing small."""
    n, bits = len(array), torch.stack([(array >> k) & 1 for k in range(32)]).double()
    assert float((bits.mean(dim=1) - 0.5).abs().max()) < 5 * 0.5 / n**0.5
    assert float((array.double().abs() < 2**21).double().mean()) < 0.01


def test_every_sum_has_a_stream_of_its_own():
    at = [AT, Address(4, "local_train", 1), Address(3, "masked_gradient", 1)]
    at += [Address(3, "local_train", 2), Address(2**32 - 1, "masked_gradient", 1000)]
    assert len({address.nonce for address in at}) == len(at)
    assert all(len(address.nonce) == 16 for address in at)
    found = [masked(at=address)["A"]["narrow"] for address in at]
    for one, other in combinations(found, 2):
        assert_random(one - other)
    assert torch.equal(masked()["A"]["narrow"], found[0])


def test_both_of_a_pair_derive_one_key_and_a_third_site_another():
    keys = {"A": PUBLIC["A"], "B": PUBLIC["B"]}
    zeros = {"x": torch.zeros(100, dtype=torch.int32)}
    one = KEYS["A"].masked(zeros, "A", keys, AT)["x"]
    assert torch.equal(one, -KEYS["B"].masked(zeros, "B", keys, AT)["x"])
    assert not torch.equal(one, -KEYS["C"].masked(zeros, "B", keys, AT)["x"])
    assert len(PUBLIC["A"]) == 64
    assert KEYS["A"].private not in repr(KEYS["A"])


@pytest.mark.parametrize("key", ["0" * 64, "short", "zz" * 32])
def test_a_key_that_hides_nothing_is_refused(key):
    zeros = {"x": torch.zeros(3, dtype=torch.int32)}
    with pytest.raises(TrainingError, match="of a site cannot be used"):
        KEYS["A"].masked(zeros, "A", {"A": PUBLIC["A"], "B": key}, AT)


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    monkeypatch.delitem(sys.modules, "autofedavg.federation.masks")
    with pytest.raises(MissingExtra, match=r"cryptography is not installed.*autofedavg\[blind\]"):
        importlib.import_module("autofedavg.federation.masks")


# --- fixed point ------------------------------------------------------------------------------


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=20), st.integers(3, 300))
def test_numbers_come_back_to_half_a_step(values, K):
    given_values = torch.tensor(values, dtype=torch.float64)
    for kind in (NARROW, WIDE):
        fixed = to_fixed(given_values, kind, K, "here", "lower it")
        assert fixed.dtype == kind
        back = from_fixed(fixed, K)
        assert float((back - given_values).abs().max()) <= 0.5 / scale_of(kind, K)


@given(st.integers(3, 300))
def test_the_sum_of_the_largest_numbers_of_all_sites_does_not_wrap(K):
    for kind in (NARROW, WIDE):
        most = torch.tensor([largest(kind, K)], dtype=torch.float64) * (1 - 1e-12)
        total = summed([{"x": to_fixed(most, kind, K, "here", "")} for _ in range(K)])["x"]
        assert float(from_fixed(total, K)) == pytest.approx(K * float(most), rel=1e-6)


def test_sixteen_sites_have_room_for_what_training_moves():
    """|w_j - w| <= 1 at the largest weight, in steps of 2^-24."""
    assert scale_of(NARROW, 16) == 2**24
    assert largest(NARROW, 16) > torch.tensor(2.0).exp()
    assert scale_of(NARROW, 17) == scale_of(NARROW, 32) == 2**23
    assert scale_of(NARROW, 3) == 2**24


@pytest.mark.parametrize("value", [8.0, -8.0, float("nan"), float("inf")])
def test_a_number_out_of_range_is_an_error_and_never_wraps(value):
    values = torch.tensor([0.0, value], dtype=torch.float64)
    with pytest.raises(Diverged, match="beyond 8, the limit of a masked sum over 16 sites"):
        to_fixed(values, NARROW, 16, "client A, round 1", "lower training.learning_rate")


def test_nothing_is_in_range():
    assert to_fixed(torch.empty(0), NARROW, 3, "here", "").numel() == 0
