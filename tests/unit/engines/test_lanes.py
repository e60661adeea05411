"""A lane's stream and random numbers, over a pretended GPU."""

from contextlib import contextmanager

import pytest
import torch

from autofedavg.core.seeds import global_seed
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.engines.simulator.lanes import Lane
from toy import CPU, cross_entropy, mlp


class Stream:
    def __init__(self, name, events) -> None:
        self.name, self._events = name, events

    def wait_stream(self, other) -> None:
        self._events.append(f"{self.name} waits for {other.name}")


class Generator:
    """What the GPU's generator points to."""

    state = "outer"

    def graphsafe_get_state(self):
        return self.state

    def graphsafe_set_state(self, state) -> None:
        self.state = state


@pytest.fixture
def trainer():
    with global_seed(1):
        return LocalTrainer(mlp(), cross_entropy, Training(iterations=2), CPU)


def test_a_lane_begins_with_the_random_numbers_outside_not_with_its_last_clients(trainer):
    lane = Lane(trainer)
    with global_seed(2), lane.open(lambda: None):
        torch.rand(5)
    with global_seed(3):
        wanted = torch.rand(5)
    with global_seed(3), lane.open(lambda: None):
        assert torch.equal(torch.rand(5), wanted)


@pytest.fixture
def gpu(monkeypatch):
    events, shared = [], Generator()
    current = [Stream("default", events)]

    @contextmanager
    def on(stream):
        current.append(stream)
        try:
            yield
        finally:
            current.pop()

    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: current[0])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", (shared,))
    return events, shared, current


def on_gpu(lane, events) -> Lane:
    lane.stream, lane._gpu = Stream("lane", events), "own"
    return lane


def test_work_is_on_the_lanes_stream_and_in_order(trainer, gpu) -> None:
    events, shared, current = gpu
    lane = on_gpu(Lane(trainer), events)

    def pause() -> None:
        events.append(f"pause with {shared.state} numbers")

    with lane.open(pause) as outside:
        assert current[-1] is lane.stream
        assert shared.state == "own"
        outside()
        assert shared.state == "own"
        trainer.launched()
    assert events == [
        "lane waits for default",
        "pause with outer numbers",
        "pause with outer numbers",
        "default waits for lane",
    ]
    assert (shared.state, trainer.launched) == ("outer", None)


def test_an_error_leaves_the_gpu_as_it_was(trainer, gpu) -> None:
    events, shared, current = gpu
    lane = on_gpu(Lane(trainer), events)

    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lane.open(stopped) as outside:
        outside()
    assert events[-1] == "default waits for lane"
    assert (shared.state, len(current), trainer.launched) == ("outer", 1, None)


class OnGpu(torch.Tensor):
    is_cuda = True

    def record_stream(self, stream) -> None:
        self.used_by = stream.name


@pytest.mark.parametrize("pack", [tuple, list, lambda parts: parts[0]])
def test_batches_of_another_thread_are_waited_for_and_kept(trainer, gpu, pack) -> None:
    events, _, _ = gpu
    lane = on_gpu(Lane(trainer), events)
    parts = torch.ones(2).as_subclass(OnGpu), torch.ones(3)
    (given,) = lane.paced([pack(parts)], lambda: events.append("pause"))
    assert events == ["lane waits for default", "pause"]
    assert parts[0].used_by == "lane"
    assert type(given) is type(pack(parts))


def test_each_lane_draws_its_own_numbers(trainer) -> None:
    """Two lanes that take turns draw what each draws alone; outside nothing is drawn."""

    def numbers(lane, seed, count, others):
        found = []
        with lane.open(others) as outside, global_seed(seed):
            for _ in range(count):
                found.append(float(torch.rand(())))
                outside()
        return found

    alone = [numbers(Lane(trainer), seed, 3, lambda: None) for seed in (1, 2)]
    torch.manual_seed(0)
    wanted = float(torch.rand(()))
    torch.manual_seed(0)
    inner: list[float] = []

    def once() -> None:
        if not inner:
            inner.extend(numbers(Lane(trainer), 2, 3, lambda: None))

    assert [numbers(Lane(trainer), 1, 3, once), inner] == alone
    assert float(torch.rand(())) == wanted
