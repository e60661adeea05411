"""Starts processes for another one, and ends all of them and theirs when that one is gone.

A script of its own, without the package: `python keeper.py`, told on standard input what to start,
one JSON table a line. When standard input ends, however that came, everything it started dies,
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
    _prctl(SET_CHILD_SUBREAPER, 1)  # what its children leave behind becomes its own
    started: list[subprocess.Popen[bytes]] = []
    try:
        for line in sys.stdin:
            started.append(_start(json.loads(line)))
            sys.stdout.write(f"{started[-1].pid}\n")
            sys.stdout.flush()
    finally:
        _end_all()


def _start(what: dict[str, Any]) -> subprocess.Popen[bytes]:
    with open(what["log"], "ab") as log:  # noqa: PTH123 - it knows no paths, only what it is told
        return subprocess.Popen(  # noqa: S603 - told by the process that started us
            what["command"],
            env=what["environment"],
            cwd=what["folder"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one thread
        )


def _die_with_parent() -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _end_all() -> None:
    """Kills until nothing is left: a process may start another while it is being killed."""
    me = psutil.Process()
    while children := me.children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break
        time.sleep(0.05)


if __name__ == "__main__":
    main()
