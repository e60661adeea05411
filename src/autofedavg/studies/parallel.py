"""Several runs of a study in parallel, in as many processes: for a GPU that one run leaves idle.

A process makes one run after another, so that it starts, and reads the data, once. Progress is
read from the run folders. A run that fails ends its process alone; the next run gets a new one.
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

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError, error_in
from autofedavg.engines.remote.processes import ProcessGuard
from autofedavg.experiment.folder_writer import RunFolder, write_atomically
from autofedavg.experiment.following import Following
from autofedavg.experiment.rows import RunConfig
from autofedavg.studies.machine import Machine, machine_of
from autofedavg.studies.observer import Observer
from autofedavg.studies.run_process import OUTPUT, RunProcess
from autofedavg.studies.study_file import PlannedRun

LOOK = 0.2  # seconds between two looks at the folders
TAIL = 2000  # characters of a traceback that are shown


class _Running(NamedTuple):
    """A run under way, and the process that makes it."""

    process: RunProcess
    run: PlannedRun
    following: Following
    observer: Observer


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
            if not waiting:
                processes.dismiss()
    if processes.failures:
        home = runs[0].folder.parents[2 if runs[0].config.folds else 1]
        raise _together(processes.failures, len(runs), home)


class _Processes:
    """The runs under way, and the errors of failed ones; no process outlives this one."""

    def __init__(self, asked: Machine) -> None:
        self._asked = asked
        self._idle: list[RunProcess] = []
        self.running: list[_Running] = []
        self.failures: list[AutoFedAvgError] = []

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(prefix="autofedavg-")
        self._guard = ProcessGuard()
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()
        self._scratch.cleanup()
        for running in self.running:
            _mark_interrupted(running.run.folder)

    def start(self, run: PlannedRun, observer: Observer) -> None:
        """Lets a process start or resume the run: an idle one, or a new one."""
        sites = sorted(run.config.task.site_names())  # as models and weights are ordered
        try:
            following = Following(run.folder, run.config.T, sites, observer.round)
        except AutoFedAvgError as error:
            self._failed(run, observer, error)
            return
        machine = asdict(self._asked if run.started else run.machine)
        process = (self._waiting() or self._new()).next()
        what = {"folder": str(run.folder), "machine": machine}
        self.running.append(_Running(process, run, following, observer))
        write_atomically(process.asked, json.dumps(what).encode())

    def _waiting(self) -> RunProcess | None:
        """A process that has finished its run, if one still lives."""
        while self._idle:
            process = self._idle.pop()
            if self._guard.alive(process.number):
                return process
        return None

    def _new(self) -> RunProcess:
        scratch = Path(tempfile.mkdtemp(dir=self._scratch.name))
        # -P: files in the current folder must not shadow installed modules.
        command = [sys.executable, "-P", "-m", "autofedavg.studies.run_process", str(scratch)]
        return RunProcess(self._guard.start(command, {}, scratch / OUTPUT), scratch)

    def look(self) -> None:
        """Reports what is new, and takes note of the runs that have ended."""
        for running in list(self.running):
            process = running.process
            alive = self._guard.alive(process.number)
            done = process.done.exists()
            with contextlib.suppress(AutoFedAvgError):  # a damaged folder: its process reports it
                running.following.look()
            if alive and not done:
                continue
            self.running.remove(running)
            if running.run.finished:
                running.observer.finished(running.run.folder)
            else:
                self._failed(running.run, running.observer, _failure(running))
            if alive and process.answer.get("ends") is False:
                self._idle.append(process)

    def dismiss(self) -> None:
        """Ends the processes that have no run: nothing waits for them, and they hold memory."""
        while self._idle:
            write_atomically(self._idle.pop().next().asked, b"null")

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


def _failure(running: _Running) -> AutoFedAvgError:
    """Why a process did not finish its run."""
    process = running.process
    if facts := process.answer:
        what, where, remedy = (str(facts.get(key, "")) for key in ("error", "where", "remedy"))
        return error_in(facts) or RunError(what, where=where, remedy=remedy)
    with (process.scratch / OUTPUT).open(errors="replace") as output:
        output.seek(process.printed)
        printed = output.read()
    _, raised, trace = printed.rpartition("Traceback ")
    why = "its process was killed, perhaps for lack of memory"
    if raised:
        why = f"its process failed:\n{(raised + trace).strip()[-TAIL:]}"
    folder = running.run.folder
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
