"""Interleaved timing: every contestant once a repetition, and ratios within the repetition."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

Run = Callable[[], object]


@dataclass(frozen=True)
class Sample:
    """One number per repetition."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The middle half of the repetitions lies between these."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high


class Times:
    """Seconds of every contestant in every repetition.

    Attributes:
        others: how many cores other processes kept busy meanwhile.
    """

    def __init__(self, seconds: Mapping[str, list[float]], others: float) -> None:
        self._seconds, self.others = seconds, others

    @property
    def names(self) -> list[str]:
        return list(self._seconds)

    def all(self, name: str) -> list[float]:
        return self._seconds[name]

    def ratio(self, name: str, floor: str) -> Sample:
        """How long one took over the other, repetition by repetition."""
        pairs = zip(self._seconds[name], self._seconds[floor], strict=True)
        return Sample(tuple(one / other for one, other in pairs))


def keep_heap() -> None:
    """Lets this process, and those forked from it, keep memory that is freed.

    Whether glibc gives the top of the heap back after every step, and takes page faults in the
    next, is luck; it is worth a tenth of a step, to the floor as to us.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        trim_threshold, mmap_threshold = -1, -3  # as in malloc.h
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**25)


def interleave(contestants: Mapping[str, Run], repetitions: int, warm_up: int = 1) -> Times:
    """Times all contestants side by side.

    The order is turned by one place every repetition, so that none always runs after the same
    other; the first `warm_up` repetitions are not counted.
    """
    names = list(contestants)
    load = Load()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(-warm_up, repetitions):
        first = repetition % len(names)
        for name in names[first:] + names[:first]:
            started = time.perf_counter()
            contestants[name]()
            if repetition >= 0:
                seconds[name].append(time.perf_counter() - started)
    return Times(seconds, load.of_others())


def together(sittings: Sequence[Times]) -> Times:
    """All repetitions of several sittings as one."""
    seconds = {
        name: [value for times in sittings for value in times.all(name)]
        for name in sittings[0].names
    }
    return Times(seconds, statistics.mean(times.others for times in sittings))


class Load:
    """What the machine does for others from the making of this object on."""

    def __init__(self) -> None:
        self._start = self._now()

    def of_others(self) -> float:
        """Cores kept busy by processes that are not this one or started by it."""
        elapsed, busy, own = (
            now - then for now, then in zip(self._now(), self._start, strict=True)
        )
        return max(0.0, busy - own) / elapsed

    @staticmethod
    def _now() -> tuple[float, float, float]:
        machine = psutil.cpu_times()
        busy = machine.user + machine.system + getattr(machine, "nice", 0.0)
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        own = sum(sum(process.cpu_times()[:4]) for process in family)  # also of those that ended
        return time.perf_counter(), busy, own
