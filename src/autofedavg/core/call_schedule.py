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
    calls pay. A call that does not pay takes two such steps at once, and no limit holds.

    Args:
        memory: the `memory` of an earlier schedule, to continue from it.

    Example:
        >>> schedule, called = CallSchedule(), []
        >>> for t in range(1, 81):
        ...     if schedule.due(t):
        ...         called.append(t)
        ...         schedule.told(t, paid=t < 10)
        >>> called
        [1, 2, 5, 12, 43]
    """

    def __init__(self, memory: Mapping[str, Tensor] | None = None) -> None:
        known = memory or {}
        self.interval = int(known["interval"]) if "interval" in known else 0
        self.next = int(known["next_call"]) if "next_call" in known else 1

    @property
    def memory(self) -> dict[str, Tensor]:
        return {"interval": torch.tensor(self.interval), "next_call": torch.tensor(self.next)}

    def due(self, t: int) -> bool:
        """Whether round t makes a call."""
        return t >= self.next

    def told(self, t: int, paid: bool) -> None:
        """Takes in whether the call of round t paid; sets the round of the next one."""
        longer = 2 * self.interval + 1
        self.interval = min(longer, LONGEST) if paid else 2 * longer + 1
        self.next = t + self.interval

    @classmethod
    def most(cls, T: int) -> int:
        """The most calls that T rounds can make: each of them pays."""
        schedule, calls = cls(), 0
        while schedule.next <= T:
            schedule.told(schedule.next, paid=True)
            calls += 1
        return calls
