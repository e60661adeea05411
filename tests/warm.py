"""Processes for tests that start many and kill them, forked from one that has the libraries.

To import PyTorch and MONAI takes four seconds of a core. One process for each worker of the tests
does it, computes nothing, and forks the others. Tests of how a program starts use the fixtures
`command` and `start`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(
    [
        "autofedavg.cli.studies",
        "autofedavg.engines.remote.site_service",
        "autofedavg.studies.launch",
        "autofedavg.tasks.synthetic.task",
        "autofedavg.tasks.lists.task",
    ]
)


class Forked:
    """A process that calls a function of a module; as much of `Popen` as tests of kills use."""

    def __init__(self, work: Callable[..., object], *arguments: object, log: Path) -> None:
        self._log = log
        given = (dict(os.environ), log, work, arguments)
        self._process = WARM.Process(target=_work, args=given)
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self) -> str:
        """What it printed, once it has ended."""
        self.wait()
        return self._log.read_text()


def command(*arguments: object, log: Path) -> Forked:
    """The command with these arguments."""
    return Forked(_command, [str(argument) for argument in arguments], log=log)


def _work(variables: dict[str, str], log: Path, work: Callable[..., object], given: tuple) -> None:
    """In the new process: the environment of the one that asked for it, and its work."""
    os.environ.clear()
    os.environ.update(variables)
    with log.open("ab") as stream:
        for standard in (1, 2):
            os.dup2(stream.fileno(), standard)
    work(*given)


def _command(arguments: list[str]) -> None:
    from autofedavg import cli

    sys.exit(cli._main(arguments))
