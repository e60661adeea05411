"""The state of a run or a study, as `watch` shows it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autofedavg.experiment.lock import Lock

QUIET = 60.0  # seconds without a sign of life that are worth a word


@dataclass(frozen=True)
class WeightRange:
    """A weight; layer-wise, its mean and range over layers."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class BestRound:
    """The highest validation mean so far, and its round."""

    t: int
    score: float


@dataclass(frozen=True)
class SiteState:
    """One institution after the last round; scores and losses are None where there is none."""

    name: str
    answered: bool
    alpha: WeightRange | None = None
    beta: WeightRange | None = None
    validation: float | None = None
    validation_local: float | None = None
    loss: tuple[float | None, ...] = ()  # of every round


@dataclass(frozen=True)
class RunState:
    """The state of one run.

    Attributes:
        state: "not begun", "running", "finished", "failed", "interrupted" or "damaged".
        lock: whether a process works in the folder.
        T: rounds in all; None where only the study's defaults know.
        validation: mean over sites of every round.
        silent: seconds since the folder's last sign of life.
        learned: the last round in which LearnAggWeight was called; 0 before.
        calls: of each kind of request: calls, seconds, bytes down and up, over all rounds.
    """

    folder: Path
    row: str
    label: str
    seed: int | None = None
    fold: int | None = None
    state: str = "not begun"
    error: str = ""
    lock: Lock = "unknown"
    method: str = ""
    metric: str = ""
    t: int = 0
    T: int | None = None
    resumed: int = 0
    seconds_a_round: float | None = None
    seconds_left: float | None = None
    silent: float | None = None
    validation: tuple[float | None, ...] = ()
    best: BestRound | None = None
    learned: int = 0
    sites: tuple[SiteState, ...] = ()
    missing: tuple[str, ...] = ()
    down: int = 0
    up: int = 0
    calls: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    log: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[RunState, ...]:
        """As a study has them."""
        return (self,)

    @property
    def going_on(self) -> bool:
        return self.state == "running" and self.lock != "free"

    @property
    def killed(self) -> bool:
        """Whether the folder says `running`, but no process works in it."""
        return self.state == "running" and self.lock == "free"

    @property
    def quiet(self) -> bool:
        """No sign of life for much longer than a round takes."""
        usual = max(QUIET, 5 * (self.seconds_a_round or 0))
        return self.state == "running" and self.silent is not None and self.silent > usual

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"kind": "run", "killed": self.killed, **asdict(self), "folder": str(self.folder)}


@dataclass(frozen=True)
class StudyState:
    """The state of a study's runs, in the study's order."""

    folder: Path
    title: str
    runs: tuple[RunState, ...]

    @property
    def going_on(self) -> bool:
        return any(run.going_on for run in self.runs)

    @property
    def current(self) -> tuple[RunState, ...]:
        """The runs going on, the newest first; else the newest that stopped before its end."""
        begun = [run for run in self.runs if run.state not in ("not begun", "finished")]
        newest = sorted(begun, key=lambda run: run.silent or 0.0)
        return tuple(run for run in newest if run.going_on) or tuple(newest[:1])

    @property
    def seconds_left(self) -> float | None:
        """For all runs one after the other, at the speed of their rows so far, or of all."""
        speeds: dict[str, list[float]] = {}
        for run in self.runs:
            if run.seconds_a_round is not None:
                speeds.setdefault(run.row, []).append(run.seconds_a_round)
        every = [speed for mine in speeds.values() for speed in mine]
        todo = [run for run in self.runs if run.state != "finished"]
        if not every or any(run.T is None for run in todo):
            return None
        return sum(
            ((run.T or 0) - run.t) * statistics.median(speeds.get(run.row, every)) for run in todo
        )

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "kind": "study",
            "folder": str(self.folder),
            "title": self.title,
            "seconds_left": self.seconds_left,
            "runs": [run.plain() for run in self.runs],
        }
