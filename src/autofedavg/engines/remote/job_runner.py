"""Runs rows as jobs on a real engine whose server and sites are processes on this machine."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from autofedavg.core.errors import RunError
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.loopback import LoopbackEngine
from autofedavg.engines.remote.site_files import local_paths, site_file_text
from autofedavg.experiment.folder import Ledger, read_json
from autofedavg.experiment.folder_writer import RunFolder, write_atomically
from autofedavg.experiment.following import Following
from autofedavg.experiment.selection import Watcher
from autofedavg.tasks.base import Task

PLACES = "loopback.json"  # next to a run's config.toml, which has no paths
PATIENCE = 3  # consecutive jobs that may end without a round


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
        path.mkdir(parents=True, exist_ok=True)
        places = {"device": self._device, "task": local_paths(task)}
        write_atomically(path / PLACES, json.dumps(places, indent=1).encode() + b"\n")
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
