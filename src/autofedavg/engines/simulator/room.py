"""How many clients train at once on a GPU: as many as its memory has room for."""

from __future__ import annotations

import logging

import torch

from autofedavg.core.cuda_graphs import WARM

log = logging.getLogger(__name__)

MOST = 16  # at once: PyTorch has 32 streams for all that a process does
SHARES = 3  # of memory that a further client may take, in recorded steps
ALONE = WARM + 1  # turns that the first client has for itself: its step is recorded in the last


class Memory:
    """A GPU's memory, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def held(self) -> int:
        """What this process holds, without what it only keeps for later."""
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def free(self) -> int:
        """What nobody holds."""
        return torch.cuda.mem_get_info(self._device)[0]


class Room:
    """The number of clients that may train at once; asked before every cycle of turns.

    The first client begins alone. What it holds when its step is recorded is what a recording
    takes. Every further client gets three times as much of the free memory: for its recorded step,
    for its recorded step of LearnAggWeight, and for steps before they are recorded.

    Args:
        clients: how many there are.
        network: bytes of a further network, which the first client did not have to make.
        memory: the GPU's.
    """

    def __init__(self, clients: int, network: int, memory: Memory) -> None:
        self._clients, self._network, self._memory = clients, network, memory
        self._turns = self._before = self._found = 0

    def __call__(self) -> int:
        if self._found:
            return self._found
        if not self._turns:
            self._before = self._memory.held()
        if self._turns < ALONE:
            self._turns += 1
            return 1
        each = max(self._memory.held() - self._before, 0) + self._network
        fit = 1 + self._memory.free() // (SHARES * each)
        self._found = max(1, min(self._clients, MOST, fit))
        log.info(
            "%d of %d clients take their steps side by side: a recorded step takes %.1f GB",
            self._found, self._clients, each / 1e9,
        )  # fmt: skip
        return self._found
