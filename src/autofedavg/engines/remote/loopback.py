"""Runs rows as jobs on a real engine whose server and sites are processes on this machine."""

from __future__ import annotations

import json
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from autofedavg.core.errors import RunError, missing_extra
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.processes import ProcessGuard
from autofedavg.engines.remote.site_files import local_paths, site_file_text
from autofedavg.experiment.files import make_folder
from autofedavg.experiment.folder import Ledger, read_json
from autofedavg.experiment.folder_writer import RunFolder, write_atomically
from autofedavg.experiment.following import Following
from autofedavg.experiment.selection import Watcher
from autofedavg.tasks.base import Task

SERVER = "server"  # the name of its process
TICK = 0.2  # seconds between two calls of `tick`
AGAIN = 5.0  # seconds between two starts of one process
PLACES = "loopback.json"  # next to a run's config.toml, which has no paths
PATIENCE = 3  # consecutive jobs that may end without a round


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


class JobRunner:
    """Runs jobs one after another; keeps the engine's processes while the sites stay the same.

    Args:
        opens: the engine's loopback.
        runs: the folder under which the server writes runs.
        device: what sites compute on.
        supervise: whether to restart a job that ends early.
    """

    def __init__(
        self, opens: type[LoopbackEngine], runs: Path, device: str, supervise: bool
    ) -> None:
        self._opens, self._runs, self._device, self._supervise = opens, runs, device, supervise
        self._key: tuple[Any, ...] = ()
        self._engine: LoopbackEngine | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._held.__exit__(*failure)

    def run(self, job: Job, task: Task, watch: Watcher) -> None:
        """Runs one job to its end; `task` has the paths on this machine.

        Raises:
            AutoFedAvgError: the run failed, or the engine gave it up.
        """
        path = job.folder(self._runs)
        engine = self._engine_for(job, task)
        make_folder(path)
        places = json.dumps({"device": self._device, "task": local_paths(task)}, indent=1)
        write_atomically(path / PLACES, places.encode() + b"\n")
        run = Following(path, job.row.T, job.sites, watch)
        idle = 0
        while idle < PATIENCE:
            before = run.told
            try:
                engine.run(job, run.look)
            except KeyboardInterrupt:
                if (path / "config.toml").exists():
                    RunFolder(path).set_status("interrupted")
                raise
            run.look()
            if Ledger(path).finished:
                return
            if not self._supervise:
                break
            idle = 0 if run.told > before else idle + 1
        remedy = f"correct the cause, then run `autofedavg resume {path}`"
        given_up = RunError("the engine gave the job up", where=str(path), remedy=remedy)
        raise run.failure(remedy) or given_up

    def _engine_for(self, job: Job, task: Task) -> LoopbackEngine:
        key = (job.sites, site_file_text(task, self._device))
        if self._engine is None or self._key != key:
            self._engine = None
            self._held.close()
            home = Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="autofedavg-")))
            files = {site: home / f"site-{number}.toml" for number, site in enumerate(job.sites)}
            for file in files.values():
                file.write_text(key[1], encoding="utf-8")
            place = home / "engine"
            place.mkdir()
            opened = self._opens(job.sites, files, self._runs.absolute(), place)
            self._engine, self._key = self._held.enter_context(opened), key
        return self._engine


def with_places(path: Path, task: Task) -> Task:
    """The task of a run that began on loopback, with the paths that it had then."""
    places = places_of(path).get("task", {})
    return type(task).model_validate({**task.model_dump(exclude_unset=True), **places})


def places_of(path: Path) -> dict[str, Any]:
    """Device and paths of a run that began on loopback; empty for all others."""
    return read_json(path / PLACES) if (path / PLACES).exists() else {}
