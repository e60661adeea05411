"""Starts processes for another one, and ends all of them and theirs when that one is gone.

A script of its own, without the package: `python keeper.py`, told on standard input what to start,
one JSON table a line; an empty table ends what the dead have left behind. When standard input ends,
however that came, everything it started dies, also what those started in sessions of their own.
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
from pathlib import Path
from typing import Any

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # prctl.h
POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Does what it is told until nobody tells it any more."""
    for sign in POLITE:
        signal.signal(sign, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _bury)
    _prctl(SET_CHILD_SUBREAPER, 1)  # what its children leave behind becomes its own
    started: set[int] = set()
    try:
        for line in sys.stdin:
            what = json.loads(line)
            if what:
                started.add(number := _start(what))
            else:
                number = _end(_offspring(deep=False) - started)
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
    finally:
        _end(started & _offspring() if Path("/proc/self").exists() else started)
        while _end(_offspring()):  # a process may start another while it is being killed
            time.sleep(0.05)


def _start(what: dict[str, Any]) -> int:
    with Path(what["log"]).open("ab") as log:
        child = subprocess.Popen(  # noqa: S603 - told by the process that started us
            what["command"],
            env=what["environment"],
            cwd=what["folder"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_be_a_child,
        )
    return child.pid


def _be_a_child() -> None:
    os.setsid()
    for sign in POLITE:
        signal.signal(sign, signal.SIG_DFL)
    _prctl(SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _bury(*_: object) -> None:
    """Reaps the dead at once: FLARE's jobs go on while their parent's number is still taken."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _offspring(*, deep: bool = True) -> set[int]:
    """Its children, and theirs; none where the system does not tell."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = entry.read_text()
            state, parent = text.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(text.split()[0])] = int(parent)
    found: set[int] = set()
    edge = {os.getpid()}
    while edge:
        edge = {number for number, parent in parents.items() if parent in edge} - found
        found |= edge
        if not deep:
            break
    return found


def _end(numbers: set[int]) -> int:
    """Kills; returns how many there were."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    _bury()
    return len(numbers)


if __name__ == "__main__":
    main()
