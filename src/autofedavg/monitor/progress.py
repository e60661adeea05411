"""Progress on stderr: bars on a terminal, a line a minute in a log."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import Seen
from autofedavg.studies.observer import Observer

EVERY = 60.0  # seconds between two lines in a log


class Bars(Observer):
    """Draws one bar for the data, one for the study and one for every run under way."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._data = progress.add_task("data", total=None, visible=False, note="")
        self._study = progress.add_task("study", total=None, visible=False, note="")

    def beside(self) -> Bars:
        return copy.copy(self)  # its run has a bar of its own

    def found(self, folder: Path) -> None:
        self._progress.advance(self._study)

    def preparing(self, what: str, done: int, total: int) -> None:
        self._progress.update(
            self._data, description=what, completed=done, total=total, visible=done < total
        )

    def started(self, run: RunConfig, seed: int, index: int, total: int, folder: Path) -> None:
        self._progress.update(self._study, total=total, visible=total > 1)
        fold = f", fold {getattr(run.task, 'fold', 0)}" if run.folds else ""
        self._run = self._progress.add_task(f"{run.label}{fold}, seed {seed}", total=run.T, note="")

    def round(self, seen: Seen) -> None:
        self._progress.update(self._run, completed=seen.t, total=seen.T, note=describe(seen))

    def finished(self, folder: Path) -> None:
        self._progress.advance(self._study)
        self._progress.remove_task(self._run)

    def failed(self, folder: Path, error: Exception) -> None:
        self.finished(folder)
        _print(self._progress.console, f"failed: {error}")


def describe(seen: Seen) -> str:
    """Score and weights of a round in one line."""
    if seen.tested:
        return f"testing models {seen.tested[0]}/{seen.tested[1]}"
    parts = [] if seen.validation is None else [f"validation {100 * seen.validation:.1f}"]
    if seen.alpha:
        weights = zip(seen.sites, seen.alpha, strict=True)
        parts.append("alpha " + " ".join(f"{site} {_mean(a):.2f}" for site, a in weights))
    return "  ".join(parts)


def _mean(alpha: Any) -> float:
    return statistics.fmean(alpha) if isinstance(alpha, list) else float(alpha)


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


class Lines(Observer):
    """Prints a line a minute, for logs; parallel runs share it."""

    def __init__(self, console: Console) -> None:
        self._console, self._log, self._run, self._what = console, _Log(time.monotonic()), "", ""

    def preparing(self, what: str, done: int, total: int) -> None:
        self._say(f"{what}: {done} of {total}")

    def beside(self) -> Lines:
        return copy.copy(self)  # its run has words of its own, and the minute of all

    def started(self, run: RunConfig, seed: int, index: int, total: int, folder: Path) -> None:
        self._run = f"run {index} of {total}"
        self._what = f"{self._run}, {run.name}, seed {seed}"

    def finished(self, folder: Path) -> None:
        self._log.ended = ""  # the last one is enough
        if not self._say(f"{self._run} finished"):
            self._log.ended = f"{self._run} finished; "

    def failed(self, folder: Path, error: Exception) -> None:
        _print(self._console, f"failed: {error}")

    def round(self, seen: Seen) -> None:
        self._say(f"{self._what}: round {seen.t} of {seen.T}  {describe(seen)}")

    def _say(self, text: str) -> bool:
        """Prints the line if a minute is over."""
        if time.monotonic() - self._log.said < EVERY:
            return False
        _print(self._console, f"{self._log.ended}{text}".rstrip())
        self._log.said, self._log.ended = time.monotonic(), ""
        return True


@dataclass
class _Log:
    """What all runs share: when the last line was printed, and the run that has ended since."""

    said: float
    ended: str = ""


@contextmanager
def watching() -> Iterator[Observer]:
    """Bars on stderr when it is a terminal, else a line a minute."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console)
        return
    what, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note)
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(progress)
