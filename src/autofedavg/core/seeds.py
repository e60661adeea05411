"""Randomness by name: every draw has its own generator, so no draw depends on what ran before.

Order, parallelism, resume and engine therefore cannot change a result. Nothing in this package
touches PyTorch's or NumPy's global state without putting it back. What is done at every step costs
microseconds here (decision 48).
"""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand
from torch import Tensor

from autofedavg.core.seed_sequence import first_number

_DIGITS = 64  # of a secret, in sixteens
_WORDS, _FIRST = 624, 24  # of a Mersenne Twister's state, and the byte where PyTorch keeps them


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
    DISTILLATION = 9
    SKETCH = 10
    HALVES = 11
    PRIVACY = 12
    TRIALS = 13


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
        return first_number(self.seed, client, purpose, t, s) >> 1

    def generator(self, client: str, purpose: Purpose, t: int = 0, s: int = 0) -> torch.Generator:
        """A PyTorch generator (CPU) for this address."""
        return torch.Generator().manual_seed(self.number(client, purpose, t, s))

    def numpy(self, client: str, purpose: Purpose, t: int = 0, s: int = 0) -> np.random.RandomState:
        """A legacy NumPy state for this address: what MONAI's random transforms take."""
        return np.random.RandomState(self.number(client, purpose, t, s) % 2**32)


@dataclass(frozen=True)
class Secret(Seeds):
    """Random streams that cannot be derived without the secret number they come from.

    `manual_seed` takes 32 bits of a number, few enough to try them all: these generators begin in
    a state of which every word is drawn.

    Example:
        >>> secret = Secret.of(Secret.new().text)
        >>> secret == Secret.of(secret.text), len(secret.text)
        (True, 64)
    """

    @classmethod
    def new(cls) -> Secret:
        """One that there was not before, from the system's own source."""
        return cls(secrets.randbits(4 * _DIGITS))

    @classmethod
    def of(cls, text: str) -> Secret:
        """The one written in a text.

        Raises:
            ValueError: there is none in it.
        """
        if not re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", text):
            raise ValueError("not a secret")
        return cls(int(text, 16))

    @property
    def text(self) -> str:
        """As it is kept."""
        return f"{self.seed:0{_DIGITS}x}"

    def generator(self, client: str, purpose: Purpose, t: int = 0, s: int = 0) -> torch.Generator:
        """A PyTorch generator (CPU) for this address."""
        address = f"{self.text}/{int(purpose)}/{t}/{s}/{client}".encode()
        words = np.frombuffer(hashlib.shake_256(address).digest(4 * _WORDS), "<u4")
        made = torch.Generator()
        state = made.manual_seed(0).get_state()
        state[_FIRST : _FIRST + 8 * _WORDS] = torch.from_numpy(words.astype("u8").view("u1"))
        return made.set_state(state)


class _Nothing:
    """Stands in for a bit generator where only what a RandomState itself keeps is of interest.

    That is the second of two normal numbers drawn as a pair. To ask for it, NumPy would also copy
    its bit generator's state, number by number: thirty times the cost of all else here.
    """

    state = property(lambda self: {"bit_generator": "", "state": None}, lambda self, state: None)


# NumPy's own name for its global RandomState; where a version lacks it, the state is copied.
_LEGACY: Any = getattr(mtrand, "_rand", None)
_LENDS = hasattr(_LEGACY, "_bit_generator")
_NOTHING = _Nothing()
_SPARE: list[np.random.MT19937] = []  # more than one where blocks lie within blocks


class _Block(threading.local):
    """In which blocks of this module this thread is."""

    kept = False  # the states of Python and NumPy are kept: seeding may overwrite them
    seeded = False  # and are in use: seeding must put them back


_BLOCK = _Block()


@contextmanager
def every_state_kept() -> Iterator[None]:
    """Keeps NumPy's and Python's global states for many `every_seed` blocks at once.

    They are restored at the end. Between the blocks the states are those that the last one left.
    """
    if _BLOCK.kept:
        yield
        return
    with _states_kept():
        _BLOCK.kept = True
        try:
            yield
        finally:
            _BLOCK.kept = False


@contextmanager
def every_seed(number: int) -> Iterator[None]:
    """`global_seed` for NumPy's and Python's global generators as well: for other people's code."""
    if _BLOCK.seeded or not _BLOCK.kept:
        outer, _BLOCK.kept, _BLOCK.seeded = (_BLOCK.kept, _BLOCK.seeded), True, False
        try:
            with _states_kept(), every_seed(number):
                yield
        finally:
            _BLOCK.kept, _BLOCK.seeded = outer
        return
    tensors = torch.default_generator.get_state()
    np.random.seed(number % 2**32)
    random.seed(number)
    torch.default_generator.manual_seed(number)
    _BLOCK.seeded = True
    try:
        yield
    finally:
        _BLOCK.seeded = False
        torch.default_generator.set_state(tensors)


@contextmanager
def _states_kept() -> Iterator[None]:
    """NumPy's and Python's global generators are as before afterwards."""
    plain = random.getstate()
    try:
        with _numpy_lent() if _LENDS else _numpy_kept():
            yield
    finally:
        random.setstate(plain)


@contextmanager
def _numpy_kept() -> Iterator[None]:
    """NumPy's global generator is as before afterwards."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


@contextmanager
def _numpy_lent() -> Iterator[None]:
    """The same, sooner: another bit generator stands in, so that nothing is copied out and back."""
    theirs = _LEGACY._bit_generator
    _LEGACY._bit_generator = _NOTHING
    pair = _LEGACY.get_state(legacy=False)
    ours = _SPARE.pop() if _SPARE else np.random.MT19937(0)
    mtrand.set_bit_generator(ours)
    try:
        yield
    finally:
        mtrand.set_bit_generator(theirs)
        if pair["has_gauss"]:
            _LEGACY._bit_generator = _NOTHING
            _LEGACY.set_state(pair)
            _LEGACY._bit_generator = theirs
        _SPARE.append(ours)


@contextmanager
def global_seed(number: int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds PyTorch's global generators inside the block and restores them after it.

    For what takes no generator: dropout, parameter initialisation.
    """
    if device is not None and device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.default_generator.manual_seed(number)
            torch.cuda.manual_seed(number)
            yield
        return
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(number)
        yield
    finally:
        torch.default_generator.set_state(before)


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Draws from PyTorch's global generator inside the block are those of a copy of this one.

    For what takes no generator and is drawn on the CPU.
    """
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.set_state(generator.get_state())
        yield
    finally:
        torch.default_generator.set_state(before)


class Stream:
    """Random numbers of PyTorch's global generators that are left and taken up again.

    For a second network that is trained beside another one, and must not change what that draws.

    Args:
        start: seeds the generators inside a block.
        device: whose generator is meant, besides the CPU's.
    """

    def __init__(
        self, start: Callable[[], AbstractContextManager[None]], device: torch.device
    ) -> None:
        self._gpus = [device] if device.type == "cuda" else []
        with start():
            self._states = self._now()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Draws inside the block are the stream's next ones."""
        with torch.random.fork_rng(devices=self._gpus):
            cpu, *gpus = self._states
            torch.default_generator.set_state(cpu)
            for device, state in zip(self._gpus, gpus, strict=True):  # pragma: no cover - on a GPU
                torch.cuda.set_rng_state(state, device)
            yield
            self._states = self._now()

    def _now(self) -> list[Tensor]:
        found = [torch.cuda.get_rng_state(device) for device in self._gpus]
        return [torch.default_generator.get_state(), *found]
