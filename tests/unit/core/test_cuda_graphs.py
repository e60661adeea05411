"""Which steps are recorded, without a GPU: the recording itself is a stand-in."""

from typing import NamedTuple

import pytest
import torch

from autofedavg.core.cuda_graphs import MOST, WARM, Replays

CPU = torch.device("cpu")


class Pretended(Replays):
    """Records by remembering what would be done."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.recorded, self.replayed = [], 0

    def _record(self, batch, do):
        self.recorded.append(tuple(part.shape for part in batch))

        def replay(batch):
            self.replayed += 1
            return do(batch)

        return replay


def double(batch):
    return 2 * batch[0].sum()


def batch(size=3, dtype=torch.float32):
    return (torch.ones(size, dtype=dtype),)


def test_a_step_is_done_before_it_is_recorded_and_then_replayed() -> None:
    replays = Pretended()
    losses = [float(replays.step("train", batch(), double)) for _ in range(WARM + 5)]
    assert losses == [6.0] * (WARM + 5)
    assert replays.recorded == [((3,),)]
    assert replays.replayed == 5


def test_every_shape_type_and_kind_has_its_own_recording() -> None:
    replays = Pretended()
    for _ in range(WARM + 1):
        replays.step("train", batch(3), double)
        replays.step("train", batch(2), double)
        replays.step("train", batch(2, torch.float64), double)
        replays.step("eval", batch(3), double)
    assert len(replays.recorded) == 4


def test_there_are_not_more_recordings_than_memory_is_meant_for() -> None:
    replays = Pretended()
    for _ in range(WARM + 3):
        for size in range(1, MOST + 4):
            assert replays.step("train", batch(size), double) == 2.0 * size
    assert len(replays.recorded) == MOST


class Named(NamedTuple):
    image: torch.Tensor


OTHERS = [[torch.ones(3)], (torch.ones(3), "name"), {"a": 1}, Named(torch.ones(3))]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_batch_of_anything_but_tensors_is_never_recorded(other) -> None:
    replays = Pretended()
    for _ in range(WARM + 3):
        assert replays.step("train", other, lambda batch: torch.tensor(float(len(batch)))) > 0
    assert not replays.recorded


def test_what_cannot_be_recorded_is_done_as_before(caplog) -> None:
    """Without CUDA nothing can; a step that reads numbers on the host fails the same way."""
    replays = Replays(CPU)
    losses = [float(replays.step("train", batch(), double)) for _ in range(WARM + 4)]
    assert losses == [6.0] * (WARM + 4)
    assert len([r for r in caplog.records if "cannot be recorded" in r.message]) == 1
