"""Starts processes for another one, and ends all of them and theirs when that one is gone.

A script of its own, without the package: `python keeper.py`, told on standard input what to start,
one JSON table a line, where an empty one ends the orphans. When standard input ends, however that came, everything it started dies,
also what those started in sessions of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # prctl.h


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _bury)
    _prctl(SET_CHILD_SUBREAPER, 1)  # what its children leave behind becomes its own
    started: set[int] = set()
    try:
        for line in sys.stdin:
            what = json.loads(line)
            if what:
                started.add(number := _start(what))
            else:
                _end_orphans(started)
                number = 0
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
    finally:
        _end_all()


def _start(what: dict[str, Any]) -> int:
    with open(what["log"], "ab") as log:  # noqa: PTH123 - it knows no paths, only what it is told
        child = subprocess.Popen(  # noqa: S603 - told by the process that started us
            what["command"],
            env=what["environment"],
            cwd=what["folder"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one thread
        )
    return child.pid


def _bury(*_: object) -> None:
    """Reaps the dead at once: FLARE's jobs go on while their parent's number is still taken."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _die_with_parent() -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _end_orphans(started: set[int]) -> None:
    """Kills what the dead among the started have left behind."""
    for child in psutil.Process().children():
        if child.pid not in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _end_all() -> None:
    """Kills until nothing is left: a process may start another while it is being killed."""
    me = psutil.Process()
    while children := me.children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        _bury()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
