"""Randomness by name: every draw has its own generator, so no draw depends on what ran before.

Order, parallelism, resume and engine therefore cannot change a result. Nothing in this package
touches PyTorch's or NumPy's global state without putting it back.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a random draw is for. Numbers are part of the results: never renumber."""

    INIT = 0
    SPLIT = 1
    TRAIN_BATCHES = 2
    TRANSFORMS = 3
    AGGREGATE_BATCHES = 4
    ALPHA = 5
    NETWORK = 6
    DATA = 7
    MATCHING = 8


@dataclass(frozen=True)
class Seeds:
    """All random streams of one run, addressed by (client, purpose, t, s).

    Example:
        >>> Seeds(0).number("A", Purpose.ALPHA, 1, 2) == Seeds(0).number("A", Purpose.ALPHA, 1, 2)
        True
    """

    seed: int

    def number(self, client: str, purpose: Purpose, t: int = 0, s: int = 0) -> int:
        """A 63-bit integer for this address."""
        name = int.from_bytes(hashlib.blake2b(client.encode(), digest_size=8).digest(), "big")
        sequence = np.random.SeedSequence(self.seed, spawn_key=(name, int(purpose), t, s))
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))

    def generator(self, client: str, purpose: Purpose, t: int = 0, s: int = 0) -> torch.Generator:
        """A PyTorch generator (CPU) for this address."""
        return torch.Generator().manual_seed(self.number(client, purpose, t, s))

    def numpy(self, client: str, purpose: Purpose, t: int = 0, s: int = 0) -> np.random.RandomState:
        """A legacy NumPy state for this address: what MONAI's random transforms take."""
        return np.random.RandomState(self.number(client, purpose, t, s) % 2**32)


@contextmanager
def every_seed(number: int) -> Iterator[None]:
    """`global_seed` for NumPy's and Python's global generators as well: for other people's code."""
    legacy, plain = np.random.get_state(), random.getstate()
    try:
        np.random.seed(number % 2**32)
        random.seed(number)
        with global_seed(number):
            yield
    finally:
        np.random.set_state(legacy)
        random.setstate(plain)


@contextmanager
def global_seed(number: int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds PyTorch's global generators inside the block and restores them after it.

    For what takes no generator: dropout, parameter initialisation.
    """
    cuda = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(number)
        if cuda:
            torch.cuda.manual_seed(number)
        yield
