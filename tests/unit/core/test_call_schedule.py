"""In which rounds LearnAggWeight is called with t0 = "auto"."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autofedavg.core.call_schedule import LONGEST, CallSchedule, EveryT0

VERDICTS = st.lists(st.booleans(), min_size=1, max_size=40)


def called(verdicts, T, schedule=None, first=1):
    """The rounds of T that make a call, whose n-th verdict is the n-th of these, then the last."""
    schedule, rounds = schedule or CallSchedule(), []
    for t in range(first, T + 1):
        if schedule.due(t):
            schedule.told(t, verdicts[min(len(rounds), len(verdicts) - 1)])
            rounds.append(t)
    return rounds


def test_the_rounds_of_a_run_whose_calls_all_pay_or_never_do():
    assert called([True], 80) == [1, 2, 5, 12, 27, 42, 57, 72]
    assert called([False], 80) == [1, 4, 19]
    assert called([True, True, False, True], 80) == [1, 2, 5, 20, 35, 50, 65, 80]


@given(VERDICTS, st.integers(1, 400))
def test_calls_are_at_most_those_of_a_run_whose_calls_all_pay(verdicts, T):
    rounds, most = (called(paid, T, CallSchedule(T=T)) for paid in (verdicts, [True]))
    assert len(rounds) <= CallSchedule.most(T) == len(most)


@given(st.integers(1, 1000))
@example(12)
@example(20)
@example(27)
def test_at_most_a_fifth_of_the_rounds_make_one(T):
    assert 1 <= CallSchedule.most(T) <= max(1, T / 5)


@given(VERDICTS, st.integers(1, 60), st.integers(0, 60))
def test_the_bound_ends_the_calls_and_changes_none_before(verdicts, T, stop):
    """Also in a schedule that continues from memory."""
    free, bounded = called(verdicts, T), CallSchedule(T=T)
    head = called(verdicts, min(stop, T), bounded)
    rest = verdicts[min(len(head), len(verdicts) - 1) :]
    made = head + called(rest, T, CallSchedule(bounded.memory, T), stop + 1)
    assert made == free[: max(1, T // 5)]
    assert all(t <= T for t in made)


def test_after_the_last_call_the_next_is_beyond_the_last_round():
    schedule = CallSchedule(T=12)
    assert called([True], 12, schedule) == [1, 2]
    assert schedule.next == 13


@given(VERDICTS)
def test_a_call_that_did_not_pay_delays_the_next_and_one_that_paid_never_by_more_than_the_longest(
    verdicts,
):
    schedule, t = CallSchedule(), 1
    for paid in verdicts:
        before, other = schedule.interval, CallSchedule(schedule.memory)
        schedule.told(t, paid)
        other.told(t, not paid)
        assert (schedule.next < other.next) == paid
        assert schedule.interval > before if not paid else schedule.interval <= LONGEST
        assert not schedule.due(schedule.next - 1)
        t = schedule.next
        assert schedule.due(t)


@given(VERDICTS, st.integers(1, 60))
def test_a_schedule_from_memory_makes_the_same_calls(verdicts, stop):
    whole = called(verdicts, 120)
    schedule = CallSchedule()
    head = called(verdicts, stop, schedule)
    rest = verdicts[min(len(head), len(verdicts) - 1) :]
    assert head + called(rest, 120, CallSchedule(schedule.memory), stop + 1) == whole


def test_a_round_that_was_left_out_makes_its_call_later():
    """A drop-in part may not be asked in every round."""
    schedule = CallSchedule()
    schedule.told(1, paid=True)
    assert [schedule.due(t) for t in (1, 2, 3, 9)] == [False, True, True, True]


@pytest.mark.parametrize("t0", [1, 3])
def test_every_t0_th_round_as_in_algorithm_1(t0):
    calls = EveryT0(t0)
    assert [t for t in range(1, 10) if calls.due(t)] == list(range(t0, 10, t0))
    assert calls.memory == {}
