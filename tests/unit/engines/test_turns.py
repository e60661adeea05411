"""Jobs that take turns: their order, their number, and how they end."""

import threading

import pytest

from autofedavg.engines.simulator.turns import Stopped, Turns, in_turns


def counting(name, turns, seen):
    def job(pause) -> None:
        for k in range(turns):
            seen.append(f"{name}{k}")
            pause()

    return job


def test_turns_come_in_a_fixed_order_and_room_is_filled() -> None:
    seen = []
    in_turns([counting("a", 3, seen), counting("b", 1, seen), counting("c", 2, seen)], lambda: 2)
    assert seen == ["a0", "b0", "a1", "a2", "c0", "c1"]


def test_room_may_grow() -> None:
    room, seen = iter([1, 1, 3]), []
    in_turns([counting(name, 3, seen) for name in "abc"], lambda: next(room))
    assert seen == ["a0", "a1", "a2", "b0", "c0", "b1", "c1", "b2", "c2"]


def test_at_least_one_runs() -> None:
    seen = []
    in_turns([counting("a", 1, seen), counting("b", 1, seen)], lambda: 0)
    assert seen == ["a0", "b0"]


def test_nothing_to_do() -> None:
    in_turns([], lambda: pytest.fail("asked for nothing"))


def test_only_one_thread_runs_at_a_time() -> None:
    inside = threading.Lock()

    def job(pause) -> None:
        for _ in range(50):
            assert inside.acquire(blocking=False)
            inside.release()
            pause()

    in_turns([job] * 8, lambda: 8)


def test_an_error_stops_the_others_at_their_pause() -> None:
    ended, threads = [], threading.active_count()

    def patient(pause) -> None:
        try:
            while True:
                pause()
        except Stopped:
            ended.append("stopped")
            raise

    def failing(pause) -> None:
        pause()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        in_turns([patient, failing, patient], lambda: 3)
    assert ended == ["stopped", "stopped"]
    assert threading.active_count() == threads


def test_an_interrupt_of_the_owner_stops_them() -> None:
    room, ended = iter([1]), []

    def asked() -> int:
        try:
            return next(room)
        except StopIteration:
            raise KeyboardInterrupt from None

    def job(pause) -> None:
        try:
            pause()
        finally:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        in_turns([job, job], asked)
    assert ended == [True]


def test_a_job_that_never_began_is_stopped() -> None:
    turns = Turns(lambda pause: pytest.fail("began"))
    turns.stop()
    turns.stop()
