"""Several runs of a study in parallel, one process each: for a GPU that one run leaves idle.

Progress is read from the run folders. A run that fails does not stop the others.
`python -m autofedavg.studies.parallel` is one such process: its only argument is JSON, with the
run's folder, the machine, and the file for the error if the run fails.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import NamedTuple, Self

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError, error_facts, error_in
from autofedavg.engines.remote.processes import ProcessGuard
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.following import Following
from autofedavg.experiment.rows import RunConfig
from autofedavg.studies.machine import Machine, machine_of
from autofedavg.studies.observer import Observer
from autofedavg.studies.study_file import PlannedRun

LOOK = 0.2  # seconds between two looks at the folders
TAIL = 2000  # characters of a traceback that are shown
FAILURE, OUTPUT = "failure.json", "output.txt"


class _Process(NamedTuple):
    """A run under way; `scratch` is a folder for the error if it fails, and for what it prints."""

    number: int
    run: PlannedRun
    following: Following
    observer: Observer
    scratch: Path


def check_at_once(at_once: int, machine: Machine) -> None:
    """Refuses a number of parallel runs that the engine does not allow.

    Raises:
        ConfigError: fewer than one, or several on a real engine.
    """
    if at_once < 1:
        raise ConfigError(f"at_once is {at_once}", where="at_once", remedy="use 1 or more")
    if at_once > 1 and machine.remote:
        raise ConfigError(
            f"runs on {machine.engine} are made one after another: its sites serve all of them",
            where="at_once",
            remedy="leave --at-once out, or use the simulator",
        )


def run_in_parallel(
    runs: Sequence[PlannedRun], asked: Machine, observer: Observer, at_once: int
) -> None:
    """Executes the unfinished runs, `at_once` at a time; what `asked` leaves open is as before.

    Raises:
        ConfigError: runs on this engine cannot be parallel.
        AutoFedAvgError: some runs have failed; the others are finished.
    """
    waiting: deque[tuple[int, PlannedRun]] = deque()
    for index, run in enumerate(runs, 1):
        if run.finished:
            observer.found(run.folder)
        else:
            _check(run, asked, at_once)
            waiting.append((index, run))
    _prepare([run for _, run in waiting], observer)
    with _Processes(asked) as processes:
        while waiting or processes.running:
            while waiting and len(processes.running) < at_once:
                index, run = waiting.popleft()
                own = observer.beside()
                own.started(run.config, run.seed, index, len(runs), run.folder)
                processes.start(run, own)
            time.sleep(LOOK)
            processes.look()
    if processes.failures:
        home = runs[0].folder.parents[2 if runs[0].config.folds else 1]
        raise _together(processes.failures, len(runs), home)


class _Processes:
    """The running processes, and the errors of failed ones; no process outlives this one."""

    def __init__(self, asked: Machine) -> None:
        self._asked = asked
        self.running: list[_Process] = []
        self.failures: list[AutoFedAvgError] = []

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(prefix="autofedavg-")
        self._guard = ProcessGuard()
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()
        self._scratch.cleanup()
        for process in self.running:
            _mark_interrupted(process.run.folder)

    def start(self, run: PlannedRun, observer: Observer) -> None:
        """Starts a process that starts or resumes the run."""
        sites = sorted(run.config.task.site_names())  # as models and weights are ordered
        try:
            following = Following(run.folder, run.config.T, sites, observer.round)
        except AutoFedAvgError as error:
            self._failed(run, observer, error)
            return
        scratch = Path(tempfile.mkdtemp(dir=self._scratch.name))
        machine = asdict(self._asked if run.started else run.machine)
        what = {"folder": str(run.folder), "machine": machine, "failure": str(scratch / FAILURE)}
        # -P: files in the current folder must not shadow installed modules.
        command = [sys.executable, "-P", "-m", "autofedavg.studies.parallel", json.dumps(what)]
        number = self._guard.start(command, {}, scratch / OUTPUT)
        self.running.append(_Process(number, run, following, observer, scratch))

    def look(self) -> None:
        """Reports what is new, and removes the processes that have ended."""
        for process in list(self.running):
            alive = self._guard.alive(process.number)
            with contextlib.suppress(AutoFedAvgError):  # a damaged folder: its process reports it
                process.following.look()
            if alive:
                continue
            self.running.remove(process)
            if process.run.finished:
                process.observer.finished(process.run.folder)
            else:
                self._failed(process.run, process.observer, _failure(process))

    def _failed(self, run: PlannedRun, observer: Observer, error: AutoFedAvgError) -> None:
        self.failures.append(error)
        observer.failed(run.folder, error)


def _check(run: PlannedRun, asked: Machine, at_once: int) -> None:
    """Refuses, before anything is started, a run that cannot be parallel."""
    with contextlib.suppress(RunError):  # a damaged folder: its process reports it
        machine = machine_of(run.folder, asked) if run.started else run.machine
        check_at_once(at_once, machine.resolved())


def _prepare(runs: Sequence[PlannedRun], observer: Observer) -> None:
    """Fills the cache with prepared data, once for all processes."""
    configs: dict[str, RunConfig] = {}
    for run in runs:
        configs.setdefault(run.config.task.model_dump_json(exclude={"fold"}), run.config)
    for config in configs.values():
        config.resolved(observer.preparing).task.prepare(observer.preparing)


def _mark_interrupted(path: Path) -> None:
    """Sets a run's status, unless it has set its own or another process has resumed it."""
    if not (path / "config.toml").exists():
        return
    folder = RunFolder(path)
    with contextlib.suppress(RunError, OSError), folder.lock():
        if folder.status() == "running":
            folder.set_status("interrupted")


def _failure(process: _Process) -> AutoFedAvgError:
    """Why a process ended without finishing its run."""
    with contextlib.suppress(OSError, ValueError):
        if error := error_in(json.loads((process.scratch / FAILURE).read_bytes())):
            return error
    printed = (process.scratch / OUTPUT).read_text(errors="replace")
    _, raised, trace = printed.rpartition("Traceback ")
    why = "its process was killed, perhaps for lack of memory"
    if raised:
        why = f"its process failed:\n{(raised + trace).strip()[-TAIL:]}"
    folder = process.run.folder
    remedy = f"continue with `autofedavg resume {quote(str(folder))}`"
    return RunError(why, where=str(folder), remedy=remedy)


def _together(failures: Sequence[AutoFedAvgError], total: int, home: Path) -> AutoFedAvgError:
    """One error for all runs of a study's folder."""
    if len(failures) == 1:
        return failures[0]
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else RunError
    errors = "\n".join(map(str, failures))
    remedy = f"correct the causes, then continue with `autofedavg resume {quote(str(home))}`"
    return kind(f"{len(failures)} of {total} runs failed:\n{errors}", remedy=remedy)


def main() -> None:
    """Starts or resumes one run."""
    from autofedavg.studies.launch import resume  # which imports this module

    what = json.loads(sys.argv[1])
    folder = Path(what["folder"])
    try:
        resume(folder, Machine(**what["machine"]))
    except AutoFedAvgError as error:
        facts = error_facts(error)
        if str(folder) not in facts["where"]:
            facts["where"] = f"{folder}: {facts['where']}".removesuffix(": ")
        Path(what["failure"]).write_text(json.dumps(facts))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
