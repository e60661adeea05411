"""What a site has released about its patients under differential privacy, and how much it may.

Every release is one entry, by the keyed digest of the request that it answers. A request that is
repeated has the same answer, noise included, and costs nothing. Releases of a job about different
patients count in parallel, those of several jobs one on top of the other: splits differ by job.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from autofedavg.core.accountant import ORDERS, Mechanism, epsilon_of, parallel
from autofedavg.core.errors import TrainingError

Account = dict[str, Counter[Mechanism]]  # by group: patients of two groups differ


class Entry(NamedTuple):
    """One release.

    Attributes:
        job: what it is part of, with data, settings and machine.
        call: the request.
        t: the round.
        s: the step of LearnAggWeight; 0 for training.
        group: the patients it is about: those of a split, `train` where it shares some with it.
        q: every patient's chance to take part in a step.
        sigma: the noise multiplier.
        steps: how many noisy sums it is made of.
        digest: of all that determines the answer; only the site can compute it.
    """

    job: str
    call: str
    t: int
    s: int
    group: str
    q: float
    sigma: float
    steps: int
    digest: str

    @classmethod
    def read(cls, values: Any) -> Entry:
        """An entry from plain values.

        Raises:
            ValueError, TypeError: they are none, or its numbers are impossible.
        """
        entry = cls(**values)
        texts, numbers = (entry.job, entry.call, entry.group, entry.digest), (entry.t, entry.s)
        whole = all(type(number) is int for number in (*numbers, entry.steps))
        if not whole or not all(isinstance(text, str) for text in texts):
            raise ValueError("a value is of another kind")
        if not (0 < entry.q <= 1 and 0 < entry.sigma < math.inf and entry.steps >= 1):
            raise ValueError(f"q = {entry.q}, sigma = {entry.sigma}, steps = {entry.steps}")
        return entry

    @property
    def place(self) -> str:
        step = f", step {self.s}" if self.s else ""
        return f"{self.call} of round {self.t}{step}"


@dataclass(frozen=True)
class Limit:
    """What a site allows.

    Attributes:
        epsilon: the most that may be spent on any patient, by all jobs; 0 for no limit.
        delta: at which epsilon is meant.
        replays: what happens to a request for a step that was answered before with other content.
    """

    epsilon: float = 0.0
    delta: float = 1e-3
    replays: Literal["refuse", "count"] = "count"


class BudgetError(TrainingError):
    """A site refuses a release: its limit would be passed, or the step was released before."""


class Ledger:
    """A site's releases in memory: for simulations; on real engines a file holds them."""

    def __init__(self, limit: Limit = Limit()) -> None:  # noqa: B008 - frozen
        self.limit = limit
        self._digests: set[str] = set()
        self._steps: set[tuple[str, str, int, int]] = set()
        self._jobs: dict[str, Account] = {}

    def spend(self, entry: Entry) -> None:
        """Records a release before it is computed.

        Raises:
            BudgetError: it is not allowed; nothing was recorded.
        """
        with self._held():
            if entry.digest in self._digests:
                return
            if self.limit.replays == "refuse" and entry[:4] in self._steps:
                raise BudgetError(
                    f"{entry.place} was answered before, from another model or beta; its patients' "
                    "privacy is spent once",
                    remedy="resume the run from the same checkpoint, or set privacy.replays = "
                    "'count' in the site's file",
                )
            wanted, limit = self.epsilon(entry), self.limit
            if limit.epsilon and not wanted <= limit.epsilon:  # nan is no permission
                raise BudgetError(
                    f"its privacy budget is spent: {entry.place} would make epsilon {wanted:.4g} "
                    f"at delta {limit.delta:g}, and this site's limit is {limit.epsilon:g}",
                    remedy="ask the site for a higher limit, or end the run here",
                )
            self._keep(entry)
            self._add(entry)

    def epsilon(self, further: Entry | None = None, job: str | None = None) -> float:
        """What has been spent on the patient who is worst off.

        Args:
            further: a release to be added.
            job: count this job alone.
        """
        total = np.zeros_like(ORDERS)
        for name in {*self._jobs, *([further.job] if further else [])}:
            if job in (None, name):
                account = self._jobs.get(name, {})
                if further and further.job == name:
                    account = added(account, further)
                total = total + parallel(account.values())
        return epsilon_of(total, self.limit.delta)

    def forecast(self, job: str, account: Account) -> float:
        """What will have been spent once a whole job is, whatever of it is already."""
        others = (known for name, known in self._jobs.items() if name != job)
        curves = [parallel(known.values()) for known in (account, *others)]
        return epsilon_of(np.sum(curves, axis=0), self.limit.delta)

    def _add(self, entry: Entry) -> None:
        self._digests.add(entry.digest)
        self._steps.add(entry[:4])
        self._jobs[entry.job] = added(self._jobs.get(entry.job, {}), entry)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Nobody else writes meanwhile."""
        yield

    def _keep(self, entry: Entry) -> None:
        """Stores an entry so that it outlives the process."""


def added(account: Account, entry: Entry) -> Account:
    """The account with one more release."""
    group = Counter(account.get(entry.group, {}))
    group[Mechanism(entry.q, entry.sigma)] += entry.steps
    return {**account, entry.group: group}
