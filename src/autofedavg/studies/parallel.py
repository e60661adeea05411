"""Several runs of a study at a time, each in a process of its own: for a GPU that one leaves idle.

What is told of a run comes from its folder. One that fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError, error_in
from autofedavg.engines.remote.processes import ProcessGuard
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.following import Following
from autofedavg.studies.machine import Machine, machine_of
from autofedavg.studies.observer import Observer
from autofedavg.studies.planned_runs import PlannedRun

LOOK = 0.2  # seconds between two looks at the folders
SAID = 2000  # characters of what a process said last, where it ended in a way nobody foresaw


@dataclass(frozen=True)
class _Process:
    """A run under way.

    Attributes:
        answer: where the process writes why the run failed.
        output: what it says else.
    """

    number: int
    run: PlannedRun
    following: Following
    observer: Observer
    answer: Path
    output: Path


def check_at_once(at_once: int, machine: Machine) -> None:
    """Refuses what cannot be done so many at a time.

    Raises:
        ConfigError: fewer than one, or several on a real engine.
    """
    if at_once < 1:
        raise ConfigError(f"at_once is {at_once}", where="at_once", remedy="use 1 or more")
    if at_once > 1 and machine.remote:
        raise ConfigError(
            f"runs on {machine.engine} are made one after another: its sites serve them all",
            where="at_once",
            remedy="leave --at-once out, or use the simulator",
        )


def run_in_parallel(
    wanted: Sequence[PlannedRun], asked: Machine, observer: Observer, at_once: int
) -> None:
    """Carries out the runs that are not finished, so many at a time.

    Args:
        wanted: all runs; what a process needs to begin one is in the study's folder.
        asked: where to compute, as far as it was said.
        observer: told of progress; every run has one of its own, `observer.beside()`.
        at_once: processes.

    Raises:
        ConfigError: runs cannot be computed so.
        AutoFedAvgError: some have failed; the others are finished.
    """
    waiting: deque[tuple[int, PlannedRun]] = deque()
    for index, run in enumerate(wanted, 1):
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
                own.started(run.config, run.seed, index, len(wanted), run.folder)
                processes.start(run, own)
            time.sleep(LOOK)
            processes.look()
    if processes.failures:
        raise _together(processes.failures, len(wanted))


class _Processes:
    """Those under way, and why others have failed; none of them outlives this process."""

    def __init__(self, asked: Machine) -> None:
        self._asked = asked
        self.running: list[_Process] = []
        self.failures: list[AutoFedAvgError] = []
        self._count = 0

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
        """Starts a process that begins the run, or goes on with it."""
        self._count += 1
        answer, output = (
            Path(self._scratch.name) / f"{kind}-{self._count}" for kind in ("answer", "output")
        )
        sites = sorted(run.config.task.site_names())  # as models and weights are ordered
        try:
            following = Following(run.folder, run.config.T, sites, observer.round)
        except AutoFedAvgError as error:
            self._failed(run, observer, error)
            return
        machine = asdict(self._asked if run.begun else run.machine)
        what = {"folder": str(run.folder), "machine": machine, "answer": str(answer)}
        # -P: what lies in the current folder is not imported in place of what is installed.
        command = [sys.executable, "-P", "-m", "autofedavg.studies.run_one", json.dumps(what)]
        number = self._guard.start(command, {}, output)
        self.running.append(_Process(number, run, following, observer, answer, output))

    def look(self) -> None:
        """Tells of what is new, and lets go of those that have ended."""
        for process in list(self.running):
            alive = self._guard.alive(process.number)
            with contextlib.suppress(AutoFedAvgError):  # a damaged folder: its process says so
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
    """Refuses what cannot be before anything is started."""
    if not run.begun:
        check_at_once(at_once, run.machine.resolved())
        return
    try:
        machine = machine_of(run.folder, asked).resolved()
    except RunError:  # a damaged folder: its process says so, and the others go on
        return
    check_at_once(at_once, machine)


def _prepare(runs: Sequence[PlannedRun], observer: Observer) -> None:
    """Data that are worked out once and kept: before several processes look for them."""
    known = set()
    for run in runs:
        key = run.config.task.model_dump_json(exclude={"fold"})
        if key not in known:
            known.add(key)
            run.config.resolved(observer.preparing).task.prepare(observer.preparing)


def _mark_interrupted(path: Path) -> None:
    """Notes that a run was ended, unless it says how itself, or somebody else goes on with it."""
    if not (path / "config.toml").exists():
        return
    folder = RunFolder(path)
    with contextlib.suppress(RunError, OSError), folder.lock():
        if folder.status() == "running":
            folder.set_status("interrupted")


def _failure(process: _Process) -> AutoFedAvgError:
    """Why a process ended without finishing its run."""
    with contextlib.suppress(OSError, ValueError):
        told = error_in(json.loads(process.answer.read_bytes()))
        if told is not None:
            return told
    _, raised, trace = process.output.read_text(errors="replace").rpartition("Traceback ")
    folder = process.run.folder
    return RunError(
        f"its process failed:\n{(raised + trace).strip()[-SAID:]}"
        if raised
        else "its process was ended from outside, perhaps for lack of memory",
        where=str(folder),
        remedy=f"go on with `autofedavg resume {folder}`",
    )


def _together(failures: Sequence[AutoFedAvgError], total: int) -> AutoFedAvgError:
    """One error for all."""
    if len(failures) == 1:
        return failures[0]
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else RunError
    told = "\n".join(map(str, failures))
    return kind(
        f"{len(failures)} of {total} runs failed:\n{told}",
        remedy="look at what they say, then go on with `autofedavg resume`",
    )
