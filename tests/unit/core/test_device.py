"""What a finished run held on a GPU is given back before the next one looks for room."""

import gc
import weakref

import torch

from autofedavg.core.device import release_memory


def in_a_cycle() -> weakref.ref[torch.Tensor]:
    """A tensor that nothing uses, in a reference cycle, as a recorded step's are."""
    tensor = torch.zeros(3)
    held: list[object] = [tensor]
    held.append(held)
    return weakref.ref(tensor)


def test_what_only_cycles_hold_is_given_back_on_a_gpu_alone() -> None:
    gc.collect()
    gc.disable()
    try:
        tensor = in_a_cycle()
        release_memory("cpu")
        assert tensor() is not None
        release_memory("cuda:0")  # needs none: there is nothing to give back then
        assert tensor() is None
    finally:
        gc.enable()
