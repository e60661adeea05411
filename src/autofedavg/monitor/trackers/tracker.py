"""Copies a run's numbers from its folder to trackers, round by round, and never stops the run.

Every number comes from the folder: a run that was killed and resumed is copied from where the
tracker stands, so no point is missing or there twice.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from autofedavg.core.errors import ConfigError, did_you_mean, missing_extra
from autofedavg.experiment.folder import Ledger
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import Seen
from autofedavg.monitor.trackers.mlflow import MlflowLog
from autofedavg.monitor.trackers.points import round_points, score_points
from autofedavg.monitor.trackers.tensorboard import TensorBoardLog
from autofedavg.monitor.trackers.tracked_run import Log, TrackedRun
from autofedavg.studies.observer import Observer

Opener = Callable[[TrackedRun, int], Log]
TRACKERS: dict[str, tuple[Opener, str]] = {  # with the package each needs
    "mlflow": (MlflowLog, "mlflow-skinny"),
    "tensorboard": (TensorBoardLog, "tensorboard"),
}

log = logging.getLogger(__name__)


class Tracker(Observer):
    """Copies one run after the other to a log; a failure there is one warning.

    `open` opens the log of a run; the run computes rounds from the given one on again.
    """

    def __init__(self, name: str, open: Opener) -> None:
        self._name, self._open = name, open
        self._folder = Path()
        self._copied: tuple[TrackedRun, Log] | None = None  # from the first round on
        self._broken = threading.Event()  # shared with those of runs at the same time
        self._others: list[Tracker] = []

    def beside(self) -> Tracker:
        another = Tracker(self._name, self._open)
        another._broken = self._broken
        self._others.append(another)
        return another

    def started(self, run: RunConfig, seed: int, index: int, total: int, folder: Path) -> None:
        self._folder = folder

    def round(self, seen: Seen) -> None:
        self._safely(lambda: self._copy(self._folder, seen.t + 1 if seen.tested else seen.t))

    def finished(self, folder: Path) -> None:
        self._safely(lambda: self._finish(folder))

    def found(self, folder: Path) -> None:
        self._safely(lambda: self._finish(folder))

    def failed(self, folder: Path, error: Exception) -> None:
        self.stopped("failed")

    def stopped(self, state: str) -> None:
        """The runs under way have failed or were interrupted."""
        for tracker in self._others:
            tracker.stopped(state)
        self._safely(lambda: self._close(state))

    def _copy(self, folder: Path, first: int) -> tuple[TrackedRun, Log]:
        if self._copied is None:
            run = TrackedRun(folder)
            self._copied = run, self._open(run, first)
        run, kept = self._copied
        for line in run.rounds.look():
            if line["t"] > kept.last:
                kept.write(int(line["t"]), float(line["time"]), round_points(line, run.names))
        return run, kept

    def _finish(self, folder: Path) -> None:
        ledger = Ledger(folder)
        last = ledger.rounds()[-1]
        run, kept = self._copy(folder, int(last["t"]) + 1)
        if not kept.complete:
            points = score_points(ledger.scores(), str(run.environment["metric"]), run.names)
            kept.finish(int(last["t"]), float(last["time"]), points)
        self._close("")

    def _close(self, state: str) -> None:
        copied, self._copied = self._copied, None
        if copied is not None:
            copied[1].close(state)

    def _safely(self, work: Callable[[], object]) -> None:
        """A tracker may fail in any way, from a full disk to a server that is gone."""
        if self._broken.is_set():
            return
        try:
            work()
        except Exception as error:
            self._broken.set()
            # An address may hold a password, and the log is part of the run folder.
            reason = re.sub(r"//[^/@\s]+@", "//***@", str(error).partition("\n")[0])
            log.warning(
                "%s: tracking stopped (%s: %s); the run goes on, and a later `resume --track %s` "
                "copies what is missing",
                self._name, type(error).__name__, reason, self._name,
            )  # fmt: skip


@contextmanager
def tracking(names: Sequence[str]) -> Iterator[list[Tracker]]:
    """Observers that copy every run to the named trackers.

    Raises:
        ConfigError: there is no such tracker.
        MissingExtra: its package is not installed.
    """
    trackers = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise ConfigError(
                f"{name!r} is not a known tracker", remedy=did_you_mean(name, TRACKERS)
            )
        opener, package = TRACKERS[name]
        if find_spec(name) is None:
            raise missing_extra(name, package)
        trackers.append(Tracker(name, opener))
    try:
        yield trackers
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        for tracker in trackers:
            tracker.stopped(state)
        raise
