"""Where one client at a time trains while others train elsewhere on the same GPU.

A lane has a network, a stream, recorded steps and random numbers of its own. What a client computes
in a lane depends on nothing that happens in another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autofedavg.core.trainer import Batch, LocalTrainer
from autofedavg.engines.simulator.turns import Pause


class Lane:
    """A trainer with a stream, and with states of PyTorch's global generators, of its own.

    The generators are swapped while the lane is at work. A recorded step reads seed and offset from
    memory of the generator that it was recorded with, so lanes must not share the GPU's.

    Args:
        trainer: its network; no other lane has it.
    """

    def __init__(self, trainer: LocalTrainer) -> None:
        self.trainer = trainer
        self._device = trainer.device
        self._cpu: Tensor | None = None  # the state of the CPU's generator between turns
        self._outer_cpu: Tensor | None = None
        on_gpu = self._device.type == "cuda"
        self.stream: torch.cuda.Stream | None = None
        if on_gpu:
            self.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._gpu = torch.Generator(self._device) if on_gpu else None
        self._outer_gpu: torch.Generator | None = None

    @contextmanager
    def open(self, pause: Pause) -> Iterator[Pause]:
        """Work inside the block is the lane's; gives the function that pauses it.

        A gradient that is not a step of training (`LocalTrainer.differentiate`) pauses by itself
        while the GPU works on it. The lane's work begins after all work that was started before on
        the default stream, and ends before all that is started there afterwards.
        """
        self._cpu = None
        self._enter()
        self.trainer.launched = partial(self._outside, pause)
        try:
            with nullcontext() if self.stream is None else self._on(self.stream):
                yield self.trainer.launched
        finally:
            self.trainer.launched = None
            self._leave()

    def paced(self, batches: Iterable[Batch], pause: Pause) -> Iterator[Batch]:
        """The batches, with a pause after the step on each."""
        for batch in batches:
            self._receive(batch)
            yield batch
            pause()

    @contextmanager
    def _on(self, stream: torch.cuda.Stream) -> Iterator[None]:
        usual = torch.cuda.default_stream(self._device)
        stream.wait_stream(usual)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            usual.wait_stream(stream)

    def _receive(self, batch: Any) -> None:
        """A batch made in another thread was made on the default stream."""
        if self.stream is None:
            return
        self.stream.wait_stream(torch.cuda.default_stream(self._device))
        for part in batch if isinstance(batch, (tuple, list)) else (batch,):
            if isinstance(part, Tensor) and part.is_cuda:
                part.record_stream(self.stream)  # its memory is not used again before we are done

    def _outside(self, pause: Pause) -> None:
        self._leave()
        try:
            pause()
        finally:
            self._enter()

    def _enter(self) -> None:
        self._outer_cpu = torch.default_generator.get_state()
        if self._cpu is not None:
            torch.default_generator.set_state(self._cpu)
        if self._gpu is not None:
            shared = _shared_generator()
            self._outer_gpu = shared.graphsafe_get_state()
            shared.graphsafe_set_state(self._gpu)

    def _leave(self) -> None:
        self._cpu = torch.default_generator.get_state()
        if self._outer_cpu is not None:
            torch.default_generator.set_state(self._outer_cpu)
        if self._outer_gpu is not None:
            _shared_generator().graphsafe_set_state(self._outer_gpu)


def _shared_generator() -> torch.Generator:
    """The current GPU's generator for all that takes none."""
    return torch.cuda.default_generators[torch.cuda.current_device()]
