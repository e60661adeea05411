"""The run that is copied to a tracker, and the log that a tracker keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autofedavg.experiment.folder import STUDY, Rounds, read_json, read_toml, study_home
from autofedavg.monitor.trackers.points import site_names


@dataclass(frozen=True)
class TrackedRun:
    """The run that is copied to a tracker.

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


def source_of(folder: Path) -> TrackedRun:
    """Reads a run folder that has a round."""
    whole = folder.resolve()
    home = study_home(whole) or whole
    study = read_json(home / STUDY)["name"] if home != whole else whole.name
    environment = read_json(folder / "environment.json")
    return TrackedRun(
        folder=whole,
        home=home,
        name=str(whole.relative_to(home)) if home != whole else whole.name,
        study=str(study),
        config=read_toml(folder / "config.toml"),
        environment=environment,
        first=Rounds(folder / "rounds.jsonl").look()[0],
        names=site_names(sorted(environment["data"]["cases"])),
    )
