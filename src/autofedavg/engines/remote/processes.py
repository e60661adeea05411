"""A guard process that starts other processes, and kills all of them when its own parent ends.

`python -m autofedavg.engines.remote.processes` reads one JSON request a line from standard input
and answers each with one line. It is the subreaper of all descendants (PR_SET_CHILD_SUBREAPER):
those that have left their session or lost their parent become its children, so none escapes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from <linux/prctl.h>
LOOK = 0.5  # seconds between two checks of the parent


class ProcessGuard:
    """A guard process, from its parent's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "autofedavg.engines.remote.processes", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the guard
        )

    def start(
        self,
        args: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        folder: Path | None = None,
    ) -> int:
        """Starts a process in a folder, with its output in a log; returns its process ID."""
        what = {"start": [*args], "variables": {**variables}, "log": str(log)}
        return int(self._ask({**what, "folder": str(folder or Path.cwd())}))

    def alive(self, process: int) -> bool:
        """Whether a process that it started still runs."""
        return bool(self._ask({"alive": process}))

    def sweep(self) -> None:
        """Kills the orphans of processes that have died."""
        self._ask({"sweep": True})

    def close(self) -> None:
        """Kills all processes and waits for their end; may be called again."""
        self._process.communicate()  # it ends when its standard input does

    def _ask(self, request: dict[str, Any]) -> Any:
        pipe, answers = self._process.stdin, self._process.stdout
        try:
            if pipe and answers:
                pipe.write(json.dumps(request).encode() + b"\n")
                pipe.flush()
                return json.loads(answers.readline())
        except (BrokenPipeError, ValueError):
            pass
        raise RunError("the guard process was killed from outside")


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.socket() as attempt:
        attempt.bind(("127.0.0.1", 0))
        return int(attempt.getsockname()[1])


def main() -> None:
    """Serves until the parent closes the pipe or ends; then kills all processes."""
    parent = int(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        _serve(parent)
    finally:
        while _kill(set(_children())):  # orphans become children of this process
            time.sleep(0.01)
            _reaped()


def _serve(parent: int) -> None:
    dead: set[int] = set()
    started: set[int] = set()
    # Dead processes are reaped at once: FLARE's jobs continue while their parent's ID exists.
    signal.signal(signal.SIGCHLD, lambda *_: dead.update(_reaped()))
    while os.getppid() == parent:
        if not select.select([sys.stdin], [], [], LOOK)[0]:
            continue
        line = sys.stdin.readline()  # one at a time: the parent waits for each answer
        if not line:
            return
        request = json.loads(line)
        answer: Any = True
        if "start" in request:
            # The new process may have the ID of a dead one; no signal may come in between.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            started.add(answer := _start(request))
            dead.discard(answer)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        elif "alive" in request:
            answer = request["alive"] not in dead
        else:
            while _kill(set(_children()) - started):
                time.sleep(0.01)
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


def _start(request: dict[str, Any]) -> int:
    """Starts a process, in a session of its own, that dies with the guard."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    child = os.fork()
    if child:
        os.close(log)
        return child
    try:
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.chdir(request["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        args = request["start"]
        os.execvpe(args[0], args, {**os.environ, **request["variables"]})  # noqa: S606 - our own
    finally:
        os._exit(127)


def _reaped() -> list[int]:
    """Reaps children that have died; returns their IDs."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while number := os.waitpid(-1, os.WNOHANG)[0]:
            found.append(number)
    return found


def _kill(processes: set[int]) -> set[int]:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return processes


def _children() -> list[int]:
    me = str(os.getpid())
    found = []
    for about in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if about.read_text().rpartition(")")[2].split()[1] == me:
                found.append(int(about.parent.name))
    return found


if __name__ == "__main__":
    main()
