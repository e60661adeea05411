"""In which rounds LearnAggWeight is called: every t0 rounds, or as long as calls pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from autofedavg.core.bank import Bank

BATCHES = 8  # mini-batches of every client that a call is judged on
LONGEST = 15  # rounds between two calls while they pay (decision 63)
ROUNDS_A_CALL = 5  # a run makes at most one call for so many of its rounds, and one in any case


class LearningRounds(Protocol):
    """What Algorithm 1 asks about its calls of LearnAggWeight."""

    @property
    def memory(self) -> dict[str, Tensor]:
        """What a resumed run needs to make the same calls."""

    def due(self, t: int) -> bool:
        """Whether round t calls LearnAggWeight."""

    def kept(self, t: int, w_k: Bank, before: Tensor, learned: Tensor) -> Tensor:
        """The beta to continue with after a call in round t that turned `before` to `learned`."""


@dataclass(frozen=True)
class EveryT0:
    """Algorithm 1: a call in every t0-th round, whose beta is kept."""

    t0: int
    memory: dict[str, Tensor] = field(default_factory=dict)

    def due(self, t: int) -> bool:
        return t % self.t0 == 0

    def kept(self, t: int, w_k: Bank, before: Tensor, learned: Tensor) -> Tensor:
        return learned


class CallSchedule:
    """Fewer and fewer calls, and fewer still where they do not pay (decision 63).

    The first call is due in round 1. After it the interval is 1, 3, 7 and then 15 rounds as long as
    calls pay. A call that does not pay takes two such steps at once, and no limit holds. Where the
    number of rounds is known, at most a fifth of them make a call, and at least one.

    Args:
        memory: the `memory` of an earlier schedule, to continue from it.
        T: how many rounds can make a call; None where nobody knows.

    Example:
        >>> schedule, called = CallSchedule(), []
        >>> for t in range(1, 81):
        ...     if schedule.due(t):
        ...         called.append(t)
        ...         schedule.told(t, paid=t < 10)
        >>> called
        [1, 2, 5, 12, 43]
    """

    def __init__(self, memory: Mapping[str, Tensor] | None = None, T: int | None = None) -> None:
        known = {name: int(value) for name, value in (memory or {}).items() if value.dim() == 0}
        self._T, self._calls = T, known.get("calls", 0)
        self.interval, self.next = known.get("interval", 0), known.get("next_call", 1)

    @property
    def memory(self) -> dict[str, Tensor]:
        now = {"interval": self.interval, "next_call": self.next, "calls": self._calls}
        return {name: torch.tensor(value) for name, value in now.items()}

    def due(self, t: int) -> bool:
        """Whether round t makes a call."""
        return t >= self.next

    def told(self, t: int, paid: bool) -> None:
        """Takes in whether the call of round t paid; sets the round of the next one."""
        longer = 2 * self.interval + 1
        self.interval = min(longer, LONGEST) if paid else 2 * longer + 1
        self.next = t + self.interval
        self._calls += 1
        if self._T is not None and self._calls >= max(1, self._T // ROUNDS_A_CALL):
            self.next = max(self.next, self._T + 1)

    @classmethod
    def most(cls, T: int) -> int:
        """The most calls that T rounds can make: each of them pays."""
        schedule, calls = cls(T=T), 0
        while schedule.next <= T:
            schedule.told(schedule.next, paid=True)
            calls += 1
        return calls
