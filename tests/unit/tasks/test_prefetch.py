"""Batches made in advance: the same ones, in order, and no thread is left behind."""

import threading
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.tasks.imaging.segmentation import ahead


def workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ThreadPool")]


@given(st.integers(0, 12), st.integers(0, 5))
def test_results_come_in_order_whatever_is_made_in_advance(n, count) -> None:
    assert [*ahead((partial(pow, k, 2) for k in range(n)), count)] == [k * k for k in range(n)]
    assert not workers()


def test_no_more_than_asked_for_is_made_in_advance() -> None:
    made = []
    results = ahead((partial(made.append, k) for k in range(10)), 2)
    next(results)
    time.sleep(0.1)
    assert len(made) == 3
    results.close()
    assert len(made) == 3
    assert not workers()


def test_nothing_is_made_before_it_is_asked_for() -> None:
    made = []
    results = ahead((partial(made.append, k) for k in range(3)), 0)
    assert not made
    next(results)
    assert made == [0]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_failure_comes_where_its_item_would_have_come(count) -> None:
    def fail(k: int) -> int:
        if k == 2:
            raise ValueError("broken")
        return k

    results = ahead((partial(fail, k) for k in range(5)), count)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="broken"):
        next(results)
    assert not workers()
