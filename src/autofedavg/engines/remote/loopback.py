"""An engine's server and sites as processes on this machine."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self

from autofedavg.core.errors import missing_extra
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.processes import ProcessGuard

SERVER = "server"  # the name of its process
TICK = 0.2  # seconds between two calls of `tick`
AGAIN = 5.0  # seconds between two starts of one process


@dataclass
class Daemon:
    """A process that is restarted when it ends."""

    args: list[str]
    variables: dict[str, str]
    log: Path
    folder: Path | None = None
    process: int = 0
    started: float = 0.0


class LoopbackEngine(ABC):
    """Server and sites on 127.0.0.1; a context manager that leaves no process behind.

    Args:
        sites: their names.
        site_files: each site's own file, where it has one.
        runs: where the server writes run folders.
        scratch: an empty folder for keys, logs and the engine's own files.
    """

    extra: ClassVar[str]
    package: ClassVar[str]

    def __init__(
        self, sites: Sequence[str], site_files: Mapping[str, Path], runs: Path, scratch: Path
    ) -> None:
        if find_spec(self.package) is None:
            raise missing_extra(self.extra, self.package)
        self.sites, self.site_files = tuple(sites), site_files
        self.runs, self.scratch = runs.absolute(), scratch.absolute()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._daemons: dict[str, Daemon] = {}
        self._guard = ProcessGuard()
        self._held = ExitStack()
        self._held.callback(self._guard.close)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def run(self, job: Job, tick: Callable[[], None]) -> None:
        """Submits a job and returns when it has ended, whatever its outcome."""

    @abstractmethod
    def _open(self) -> None:
        """Starts the server and the sites."""

    def start(self, name: str) -> None:
        """Starts the server or a site that is not running."""
        daemon = self._daemons[name]
        daemon.started = time.monotonic()
        daemon.process = self._guard.start(daemon.args, daemon.variables, daemon.log, daemon.folder)

    def pid(self, name: str) -> int:
        """The process of the server, or of a site."""
        return self._daemons[name].process

    def close(self) -> None:
        """Ends all processes; may be called again."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _restart_ended(self) -> None:
        """Restarts processes that have ended, as a service manager does in a deployment."""
        for name, daemon in self._daemons.items():
            late = time.monotonic() - daemon.started > AGAIN
            if late and not self._guard.alive(daemon.process):
                self.start(name)


def wait(seconds: float, tick: Callable[[], None]) -> None:
    """Sleeps, and calls `tick` meanwhile."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        tick()
        time.sleep(min(TICK, left))
