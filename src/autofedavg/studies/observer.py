"""Who is told how a study goes."""

from __future__ import annotations

from pathlib import Path

from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import Seen


class Observer:
    """Told how a study goes; the command line draws its bars with one. Does nothing itself."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Data is being made ready."""

    def found(self, folder: Path) -> None:
        """A run that was finished before: nothing is computed."""

    def started(self, run: RunConfig, seed: int, index: int, total: int, folder: Path) -> None:
        """Run `index` of `total` begins; its folder may not be there yet."""

    def round(self, seen: Seen) -> None:
        """A round is over and on disk."""

    def finished(self, folder: Path) -> None:
        """A run is over."""

    def failed(self, folder: Path, error: Exception) -> None:
        """A run has failed, while others go on."""

    def beside(self) -> Observer:
        """Who is told of one run where several go on at a time; this one, if not said otherwise."""
        return self


class Observers(Observer):
    """Tells several observers, one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def preparing(self, what: str, done: int, total: int) -> None:
        for observer in self._observers:
            observer.preparing(what, done, total)

    def found(self, folder: Path) -> None:
        for observer in self._observers:
            observer.found(folder)

    def started(self, run: RunConfig, seed: int, index: int, total: int, folder: Path) -> None:
        for observer in self._observers:
            observer.started(run, seed, index, total, folder)

    def round(self, seen: Seen) -> None:
        for observer in self._observers:
            observer.round(seen)

    def finished(self, folder: Path) -> None:
        for observer in self._observers:
            observer.finished(folder)

    def failed(self, folder: Path, error: Exception) -> None:
        for observer in self._observers:
            observer.failed(folder, error)

    def beside(self) -> Observer:
        return Observers(*(observer.beside() for observer in self._observers))
