"""Copies a run's numbers from its folder to trackers, round by round, and never stops the run.

Every number comes from the folder: a run that was killed and resumed is copied from where the
tracker stands, so no point is missing or there twice.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from autofedavg.core.errors import ConfigError, did_you_mean, missing_extra
from autofedavg.experiment.folder import Ledger, Rounds, read_json
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import Seen
from autofedavg.monitor.trackers.mlflow import MlflowLog
from autofedavg.monitor.trackers.points import round_points, score_points
from autofedavg.monitor.trackers.tensorboard import TensorBoardLog
from autofedavg.monitor.trackers.tracked_run import Log, TrackedRun, source_of
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
        self._folder: Path | None = None
        self._log: Log | None = None
        self._rounds: Rounds | None = None
        self._names: Mapping[str, str] = {}
        self._broken = False
        self._others: list[Tracker] = []  # of runs at the same time
        self._above: Tracker | None = None  # shares its warning with this one

    def beside(self) -> Tracker:
        another = Tracker(self._name, self._open)
        another._above, another._broken = self, self._broken
        self._others = [other for other in self._others if other._folder is not None]
        self._others.append(another)
        return another

    def started(self, run: RunConfig, seed: int, index: int, total: int, folder: Path) -> None:
        self._folder = folder

    def round(self, seen: Seen) -> None:
        self._safely(lambda: self._copy(seen.t + 1 if seen.tested else seen.t))

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
        if self._log is not None:
            self._safely(lambda: self._close(state))

    def _copy(self, first: int) -> None:
        if self._folder is None:
            return
        if self._log is None or self._rounds is None:
            source = source_of(self._folder)
            self._rounds, self._names = Rounds(self._folder / "rounds.jsonl"), source.names
            self._log = self._open(source, first)
        for line in self._rounds.look():
            if line["t"] > self._log.last:
                points = round_points(line, self._names)
                self._log.write(int(line["t"]), float(line["time"]), points)

    def _finish(self, folder: Path) -> None:
        self._folder = folder
        ledger = Ledger(folder)
        last = ledger.rounds()[-1]
        self._copy(int(last["t"]) + 1)
        if self._log is not None and not self._log.complete:
            metric = str(read_json(folder / "environment.json")["metric"])
            points = score_points(ledger.scores(), metric, self._names)
            self._log.finish(int(last["t"]), float(last["time"]), points)
        self._close("")

    def _close(self, state: str) -> None:
        closing, self._log, self._folder = self._log, None, None
        if closing is not None:
            closing.close(state)

    def _safely(self, work: Callable[[], None]) -> None:
        """A tracker may fail in any way, from a full disk to a server that is gone."""
        if self._broken or (self._above is not None and self._above._broken):
            return
        try:
            work()
        except Exception as error:
            self._broken = True
            if self._above is not None:
                self._above._broken = True
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
