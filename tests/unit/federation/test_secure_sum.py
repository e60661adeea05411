"""What a site refuses to put into a sum, and what it writes down of it."""

import logging

import pytest
import torch

from autofedavg.core.errors import TrainingError
from autofedavg.federation.fixed_point import summed
from autofedavg.federation.secure_sum import MaskState, SiteSums, SumOver

SITES = ("A", "B", "C", "D")


def site_of(name: str, masked: bool = True) -> SiteSums:
    return SiteSums(name, MaskState(), masked=masked)


@pytest.fixture
def sums() -> dict[str, SiteSums]:
    return {name: site_of(name) for name in SITES}


def over(sums, sites=SITES, attempt: int = 1) -> SumOver:
    return SumOver({name: sums[name].public for name in sites}, attempt)


def content(k: int) -> dict[str, torch.Tensor]:
    return {"narrow": torch.arange(50, dtype=torch.int32) * (k + 1)}


def test_parts_of_all_sites_give_the_sum(sums):
    which = over(sums)
    parts = [sums[s].part(content(k), which, 1, "local_train") for k, s in enumerate(SITES)]
    plain = summed(content(k) for k in range(4))
    assert torch.equal(summed(parts)["narrow"], plain["narrow"])


def test_a_simulations_clients_have_no_keys_and_the_same_sum():
    sums = {name: site_of(name, masked=False) for name in SITES}
    which = over(sums)
    assert set(which.keys.values()) == {""}
    assert sums["A"].unknown(which) is None
    assert sums["A"].renewed() == ""
    part = sums["A"].part(content(0), which, 1, "local_train")
    assert torch.equal(part["narrow"], content(0)["narrow"])


def keys_of(n: int) -> dict[str, str]:
    return dict.fromkeys(SITES[:n], "0" * 64)


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (None, "is not a sum over sites"),
        ({"keys": keys_of(4), "attempt": 1}, "is not a sum over sites"),
        ({"keys": [1], "attempt": 1, "cases": 0}, "is not a sum over sites"),
        ({"keys": {"A": 1, "B": "", "C": ""}, "attempt": 1, "cases": 0}, "are not text"),
        ({"keys": keys_of(4), "attempt": True, "cases": 0}, "out of bounds"),
        ({"keys": keys_of(4), "attempt": 0, "cases": 0}, "out of bounds"),
        ({"keys": keys_of(4), "attempt": 10**6, "cases": 0}, "out of bounds"),
        ({"keys": keys_of(4), "attempt": 1, "cases": -1}, "out of bounds"),
        ({"keys": {"B": "", "C": "", "D": ""}, "attempt": 1, "cases": 0}, "does not belong to"),
        ({"keys": keys_of(2), "attempt": 1, "cases": 0}, "a sum over 2 sites would show"),
        ({"keys": keys_of(1), "attempt": 1, "cases": 0}, "a sum over 1 sites would show"),
    ],
)
def test_a_request_that_is_not_such_a_sum_is_refused(fact, why):
    with pytest.raises(TrainingError, match=why):
        SumOver.read(fact, "A", "client A, local_train, round 1")


def test_a_request_is_read_as_it_was_written(sums):
    which = over(sums)
    assert SumOver.read(which.note(), "B", "here") == which
    assert which.K == 4


def test_a_site_with_another_key_says_so(sums):
    which = over(sums)
    assert sums["B"].unknown(which) is None
    again = site_of("B")  # its process has started again
    reply = again.unknown(which)
    assert reply is not None
    assert reply.facts == {"missing": True, "key": again.public}
    assert again.public != which.keys["B"]


def test_an_attempt_is_answered_once_and_always_alike(sums):
    which = over(sums)
    first = sums["A"].part(content(0), which, 1, "local_train")
    assert torch.equal(
        first["narrow"], sums["A"].part(content(0), which, 1, "local_train")["narrow"]
    )
    with pytest.raises(TrainingError, match="attempt 1 was answered with other numbers"):
        sums["A"].part(content(1), which, 1, "local_train")
    sums["A"].part(content(1), which, 2, "local_train")  # other sums have masks of their own
    sums["A"].part(content(1), which, 1, "masked_gradient")


def test_the_same_attempt_is_not_answered_for_other_sites_or_keys(sums):
    sums["A"].part(content(0), over(sums), 1, "local_train")
    with pytest.raises(TrainingError, match="answered with other numbers"):
        sums["A"].part(content(0), over(sums, SITES[:3]), 1, "local_train")
    sums["B"].renewed()
    with pytest.raises(TrainingError, match="answered with other numbers"):
        sums["A"].part(content(0), over(sums), 1, "local_train")


def test_sites_only_leave_a_sum_and_attempts_only_rise(sums):
    sums["A"].part(content(0), over(sums, SITES[:3], attempt=2), 1, "local_train")
    with pytest.raises(TrainingError, match=r"attempt 1 for .* comes after attempt 2 for"):
        sums["A"].part(content(0), over(sums, SITES[:3]), 1, "local_train")
    with pytest.raises(TrainingError, match="attempt 3 for"):
        sums["A"].part(content(0), over(sums, SITES, attempt=3), 1, "local_train")
    sums["A"].part(content(0), over(sums, SITES[:3], attempt=3), 1, "local_train")


def test_an_earlier_round_is_not_answered_again(sums):
    sums["A"].part(content(0), over(sums), 2, "local_train")
    with pytest.raises(TrainingError, match="round 2 was answered already"):
        sums["A"].part(content(0), over(sums), 1, "local_train")
    sums["A"].part(content(0), over(sums), 1, "masked_gradient")
    sums["A"].part(content(0), over(sums), 3, "local_train")
    sums["A"].renewed()  # a server that resumes the run asks for new keys
    sums["A"].part(content(0), over(sums), 1, "local_train")


def test_a_new_key_brings_no_earlier_mask_back(sums):
    before = sums["A"].part(content(0), over(sums), 1, "local_train")["narrow"]
    sums["A"].renewed()
    after = sums["A"].part(content(0), over(sums), 1, "local_train")["narrow"]
    assert not torch.equal(before, after)


def test_every_attempt_is_in_the_sites_own_log(sums, caplog):
    with caplog.at_level(logging.INFO, "autofedavg"):
        sums["A"].part(content(0), over(sums), 3, "local_train")
        sums["A"].part(content(0), over(sums, SITES[:3], 2), 3, "local_train")
    assert "client A, local_train, round 3, attempt 1: a sum over A, B, C, D" in caplog.text
    assert "client A, local_train, round 3, attempt 2: a sum over A, B, C\n" in caplog.text
