"""Several runs of a study at a time, each in a process of its own: for a GPU that one leaves idle.

A process goes on with one run folder, as `autofedavg resume` does; what is told of it comes from
the folder. One that fails does not stop the others.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from autofedavg.agenda import Wanted
from autofedavg.engines import REMOTE
from autofedavg.engines.remote.guard import Guard
from autofedavg.engines.simulator import usable_cores
from autofedavg.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.experiment.following import Following
from autofedavg.experiment.ledger import read_json
from autofedavg.experiment.store import RunFolder
from autofedavg.machines import Machine
from autofedavg.observers import Observer

LOOK = 0.2  # seconds between two looks at the folders
SAID = 2000  # characters of what a process said last, where its folder does not tell


@dataclass(frozen=True)
class _Process:
    """A run under way."""

    number: int
    run: Wanted
    following: Following
    observer: Observer
    output: Path


def run_abreast(wanted: Sequence[Wanted], asked: Machine, observer: Observer, at_once: int) -> None:
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
    for run in wanted:
        _refuse(run, asked)
    waiting: deque[tuple[int, Wanted]] = deque()
    for index, run in enumerate(wanted, 1):
        if run.finished:
            observer.found(run.folder)
        else:
            waiting.append((index, run))
    _prepare([run for _, run in waiting], observer)
    with _Processes(asked, at_once) as processes:
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

    def __init__(self, asked: Machine, at_once: int) -> None:
        self._asked, self._at_once = asked, at_once
        self.running: list[_Process] = []
        self.failures: list[AutoFedAvgError] = []
        self._count = 0

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(prefix="autofedavg-")
        self._guard = Guard()
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()
        self._scratch.cleanup()
        for process in self.running:
            if process.run.begun and not process.run.finished:
                RunFolder(process.run.folder).set_status("interrupted")

    def start(self, run: Wanted, observer: Observer) -> None:
        """Starts a process that begins the run, or goes on with it."""
        sites = run.config.task.site_names()
        following = Following(run.folder, run.config.T, sites, observer.round)
        asked, workers = self._asked, self._asked.workers
        if workers is None and (asked.device or run.machine.device or "cpu") == "cpu":
            workers = max(1, usable_cores() // self._at_once)  # together they fill the cores
        command = [sys.executable, "-m", "autofedavg", "resume", str(run.folder)]
        for option, value in (
            ("--engine", asked.engine), ("--device", asked.device), ("--workers", workers)
        ):  # fmt: skip
            command += [option, str(value)] if value else []
        self._count += 1
        output = Path(self._scratch.name) / str(self._count)
        number = self._guard.start(command, {}, output)
        self.running.append(_Process(number, run, following, observer, output))

    def look(self) -> None:
        """Tells of what is new, and lets go of those that have ended."""
        for process in list(self.running):
            alive = self._guard.alive(process.number)
            process.following.look()
            if alive:
                continue
            self.running.remove(process)
            if process.following.finished:
                process.observer.finished(process.run.folder)
            else:
                process.observer.failed(process.run.folder)
                self.failures.append(_failure(process))


def _refuse(run: Wanted, asked: Machine) -> None:
    engine = asked.engine or run.machine.engine
    if run.begun:
        engine = asked.engine or read_json(run.folder / "environment.json").get("engine")
    if engine in REMOTE:
        raise ConfigError(
            f"runs on {engine} are made one after another: its sites serve them all",
            where="at_once",
            remedy="leave --at-once out, or use the simulator",
        )


def _prepare(runs: Sequence[Wanted], observer: Observer) -> None:
    """Data that are worked out once and kept: before several processes look for them."""
    known = set()
    for run in runs:
        key = run.config.task.model_dump_json(exclude={"fold"})
        if key not in known:
            known.add(key)
            run.config.resolved(observer.preparing).task.prepare(observer.preparing)


def _failure(process: _Process) -> AutoFedAvgError:
    folder = process.run.folder
    remedy = f"look at what it says, then go on with `autofedavg resume {folder}`"
    told = process.following.failure(remedy)
    if told is not None:
        return told
    said = process.output.read_text(errors="replace").rpartition("error: ")[2].strip()
    return RunError(
        said[-SAID:] or "its process was ended from outside", where=str(folder), remedy=remedy
    )


def _together(failures: Sequence[AutoFedAvgError], total: int) -> AutoFedAvgError:
    """One error for all."""
    if len(failures) == 1:
        return failures[0]
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else RunError
    told = "\n".join(f"{failure.where}: {failure.what}" for failure in failures)
    return kind(
        f"{len(failures)} of {total} runs failed:\n{told}",
        remedy="look at what they say, then go on with `autofedavg resume`",
    )
