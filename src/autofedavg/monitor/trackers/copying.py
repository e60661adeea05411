"""Copies a run's numbers from its folder to a tracker, round by round, and never stops the run.

The folder is what every number comes from: a run that was killed and goes on is copied from where
the tracker stands, so no point is missing or there twice.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autofedavg.experiment.folder import STUDY, Ledger, Rounds, read_json, read_toml, study_home
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import Seen
from autofedavg.monitor.trackers.points import round_points, score_points, site_names
from autofedavg.studies.observer import Observer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """The run that is copied.

    Attributes:
        folder: of the run.
        home: the study's folder, or the run's own where it is in none.
        name: of the run within the study, e.g. "fedavg/seed-0".
        study: the study's name, or the folder's.
        first: its first round, which no other run has: it holds the time.
        names: each site's name as trackers take it.
    """

    folder: Path
    home: Path
    name: str
    study: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    first: Mapping[str, Any]
    names: Mapping[str, str]


class Log(Protocol):
    """Where the numbers of one run go.

    Attributes:
        last: the last round that is there whole.
        complete: whether the test scores are there too.
    """

    last: int
    complete: bool

    def write(self, t: int, time: float, points: Mapping[str, float]) -> None:
        """Adds a round."""

    def finish(self, t: int, time: float, points: Mapping[str, float]) -> None:
        """Adds the test scores: the run is over."""

    def close(self, state: str = "") -> None:
        """Lets go; `state` is how a run stopped that is not over."""


# Opens the log of a run, new or as it was left; rounds from the given one on are computed anew.
Opener = Callable[[Source, int], Log]


class Tracker(Observer):
    """Copies one run after the other to a log; what goes wrong there is a warning, once.

    Args:
        name: the tracker's, for the warning.
        open: opens the log of a run.
    """

    def __init__(self, name: str, open: Opener) -> None:
        self._name, self._open = name, open
        self._folder: Path | None = None
        self._log: Log | None = None
        self._rounds: Rounds | None = None
        self._names: Mapping[str, str] = {}
        self._broken = False
        self._others: list[Tracker] = []  # of runs at the same time
        self._above: Tracker | None = None  # whose warning is this one's, too

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


def source_of(folder: Path) -> Source:
    """Reads what a tracker is told of a run; there must be a round."""
    whole = folder.resolve()
    home = study_home(whole) or whole
    study = read_json(home / STUDY)["name"] if home != whole else whole.name
    environment = read_json(folder / "environment.json")
    return Source(
        folder=whole,
        home=home,
        name=str(whole.relative_to(home)) if home != whole else whole.name,
        study=str(study),
        config=read_toml(folder / "config.toml"),
        environment=environment,
        first=Rounds(folder / "rounds.jsonl").look()[0],
        names=site_names(sorted(environment["data"]["cases"])),
    )
