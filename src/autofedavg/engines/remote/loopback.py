"""Rows as jobs on a real engine that runs on this machine: server and sites on loopback."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from autofedavg.core.errors import RunError
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.sitefile import site_file_text
from autofedavg.experiment.folder import Ledger, read_json
from autofedavg.experiment.folder_writer import RunFolder, write_atomically
from autofedavg.experiment.following import Following
from autofedavg.experiment.selection import Watcher
from autofedavg.tasks.base import Task

PLACES = "loopback.json"  # beside a run's config.toml, which holds no paths
PATIENCE = 3  # jobs in a row that may end without a round


class Loopback(Protocol):
    """Server and sites of an engine on this machine; what dies of them is started again."""

    def run(self, job: Job, tick: Callable[[], None]) -> None:
        """Submits a job and returns when the engine says it is over, however it went."""


Opens = Callable[[Sequence[str], Mapping[str, Path], Path, Path], AbstractContextManager[Loopback]]


class Trial:
    """The engine's processes, kept for as long as rows have the same sites.

    Args:
        opens: the engine's `Loopback`.
        runs: the folder under which the server writes runs.
        device: what sites compute on.
        supervise: whether a job that ends early is started anew.
    """

    def __init__(self, opens: Opens, runs: Path, device: str, supervise: bool) -> None:
        self._opens, self._runs, self._device, self._supervise = opens, runs, device, supervise
        self._key: tuple[Any, ...] = ()
        self._open: AbstractContextManager[Loopback] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(kind, error, trace)

    def run(self, job: Job, task: Task, watch: Watcher) -> None:
        """Runs one job to its end.

        Args:
            job: what to run.
            task: its task, with the paths on this machine.
            watch: told of every round.

        Raises:
            AutoFedAvgError: the run failed, or the engine gave it up.
        """
        path = job.folder(self._runs)
        loopback = self._ready(job, task)
        path.mkdir(parents=True, exist_ok=True)
        where = {"device": self._device, "task": _places(task)}
        write_atomically(path / PLACES, json.dumps(where, indent=1).encode() + b"\n")
        run = Following(path, job.row.T, job.sites, watch)
        idle = 0
        while idle < PATIENCE:
            before = run.told
            try:
                loopback.run(job, run.look)
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
        remedy = f"look at what it says, then go on with `autofedavg resume {path}`"
        given_up = RunError("the engine gave the job up", where=str(path), remedy=remedy)
        raise run.failure(remedy) or given_up

    def _ready(self, job: Job, task: Task) -> Loopback:
        key = (job.sites, site_file_text(task, self._device))
        if self._open is None or self._key != key:
            self._close()
            self._scratch = tempfile.TemporaryDirectory(prefix="autofedavg-")
            home = Path(self._scratch.name)
            files = {}
            for number, site in enumerate(job.sites):
                files[site] = home / f"site-{number}.toml"
                files[site].write_text(key[1], encoding="utf-8")
            place = home / "engine"
            place.mkdir()
            self._open = self._opens(job.sites, files, self._runs.absolute(), place)
            self._loopback = self._open.__enter__()
            self._key = key
        return self._loopback

    def _close(self, *failure: Any) -> None:
        opened, self._open = self._open, None
        try:
            if opened is not None:
                opened.__exit__(*(failure or (None, None, None)))
        finally:
            if self._scratch is not None:
                self._scratch.cleanup()
                self._scratch = None


def placed_again(path: Path, task: Task) -> Task:
    """The task of a run that was begun on loopback, with the paths it had then."""
    places = begun_at(path).get("task", {})
    return type(task).model_validate({**task.model_dump(exclude_unset=True), **places})


def begun_at(path: Path) -> dict[str, Any]:
    """Where a run was begun on loopback: its device and paths; empty where it was not."""
    return read_json(path / PLACES) if (path / PLACES).exists() else {}


def _places(task: Task) -> dict[str, str]:
    return {name: str(getattr(task, name)) for name in task.paths if getattr(task, name)}
