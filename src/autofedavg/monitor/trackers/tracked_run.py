"""The run that is copied to a tracker, and the log that a tracker keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from autofedavg.experiment.folder import STUDY, Rounds, read_json, read_toml, study_home
from autofedavg.monitor.trackers.points import site_names


class TrackedRun:
    """The run that is copied to a tracker; its folder has a round.

    Attributes:
        folder: of the run.
        home: the study's folder, or the run's own where it is in none.
        name: of the run within the study, e.g. "fedavg/seed-0".
        study: the study's name, or the folder's.
        first: its first round, which no other run has: it holds the time.
        names: each site's name as trackers take it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.home = study_home(self.folder) or self.folder
        self.name = self.study = self.folder.name
        if self.home != self.folder:
            self.name = str(self.folder.relative_to(self.home))
            self.study = str(read_json(self.home / STUDY)["name"])
        self.config = read_toml(folder / "config.toml")
        self.environment = read_json(folder / "environment.json")
        self.rounds = Rounds(folder / "rounds.jsonl")
        self.first = self.rounds.look()[0]
        self.names = site_names(sorted(self.environment["data"]["cases"]))


class Log(Protocol):
    """Where a tracker keeps the numbers of one run.

    Attributes:
        last: the last complete round.
        complete: whether the test scores are there, too.
    """

    last: int
    complete: bool

    def write(self, t: int, time: float, points: Mapping[str, float]) -> None:
        """Adds a round."""

    def finish(self, t: int, time: float, points: Mapping[str, float]) -> None:
        """Adds the test scores: the run is finished."""

    def close(self, state: str = "") -> None:
        """Closes it; `state` says how a run ended that is not finished."""
