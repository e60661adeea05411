"""Steps on a GPU that are recorded once and then replayed.

A small network's step is hundreds of kernels, and launching them one by one takes longer than they
do. CUDA can record them and launch them all at once, provided that a step does the same operations
on tensors at the same places every time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

WARM = 2  # times a step is done before it is recorded, so that libraries have set themselves up
MOST = 6  # recordings, each of which keeps the memory of a step

Do = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Recording:
    """A recorded step: what it reads, how to do it again, and where its loss is then."""

    batch: tuple[Tensor, ...]
    graph: torch.cuda.CUDAGraph
    loss: Tensor

    def __call__(self, batch: tuple[Tensor, ...]) -> Tensor:
        for place, content in zip(self.batch, batch, strict=True):
            place.copy_(content, non_blocking=True)
        self.graph.replay()
        return self.loss.clone()


class Replays:
    """The recordings of one network.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seen: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, Recording] = {}
        self._able = True

    def step(self, kind: Hashable, batch: Any, do: Do) -> Tensor:
        """`do(batch)`, which returns a loss: done, or replayed once it is known.

        Args:
            kind: what is done; two steps of one kind differ in nothing but what tensors hold.
            batch: a step whose batch is not a tuple of tensors is never recorded.
            do: does it.
        """
        # A tuple with names would be handed on without them.
        plain = type(batch) is tuple and all(isinstance(part, Tensor) for part in batch)
        if not self._able or not plain:
            return do(batch)
        key = (kind, *((part.shape, part.dtype) for part in batch))
        known = self._recordings.get(key)
        if known is not None:
            return known(batch)
        self._seen[key] += 1
        if self._seen[key] <= WARM or len(self._recordings) == MOST:
            return do(batch)
        made = self._record(batch, do)
        if made is None:
            return do(batch)
        self._recordings[key] = made
        return made(batch)

    def _record(self, batch: tuple[Tensor, ...], do: Do) -> Recording | None:
        still = tuple(part.to(self._device, copy=True) for part in batch)
        usual = torch.cuda.current_stream() if torch.cuda.is_available() else None
        # Libraries keep scratch memory by stream. Recordings that are replayed on different streams
        # at once must not share it, so a step is recorded where it is replayed, if that can be.
        own = None if usual is None or usual == torch.cuda.default_stream() else usual
        try:
            graph = torch.cuda.CUDAGraph()
            # Others, such as who makes the next batches, may use the GPU meanwhile.
            with torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
                loss = do(still)
        except RuntimeError as error:
            self._able = False
            if usual is not None:  # a recording that fails does not lead back to it
                torch.cuda.set_stream(usual)
            reason = str(error).splitlines()[0]
            log.warning("steps cannot be recorded, and are launched bit by bit: %s", reason)
            return None
        return Recording(still, graph, loss)
