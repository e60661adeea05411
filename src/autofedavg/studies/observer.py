"""Observers of a study's progress."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import Seen


class Observer:
    """Receives a study's progress; this one ignores it. The command line draws bars with one."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data is being prepared."""

    def found(self, folder: Path) -> None:
        """A run was finished before; nothing is computed."""

    def started(self, run: RunConfig, seed: int, index: int, total: int, folder: Path) -> None:
        """Run `index` of `total` starts; its folder may not exist yet."""

    def round(self, seen: Seen) -> None:
        """A round is finished and on disk."""

    def finished(self, folder: Path) -> None:
        """A run is finished."""

    def failed(self, folder: Path, error: Exception) -> None:
        """A run has failed; the others continue."""

    def beside(self) -> Observer:
        """The observer of one run while several run in parallel; by default this one."""
        return self


class Observers(Observer):
    """Passes progress on to several observers."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        for name in ("preparing", "found", "started", "round", "finished", "failed"):
            setattr(self, name, partial(self._pass_on, name))

    def _pass_on(self, name: str, *progress: Any) -> None:
        for observer in self._observers:
            getattr(observer, name)(*progress)

    def beside(self) -> Observer:
        return Observers(*(observer.beside() for observer in self._observers))
