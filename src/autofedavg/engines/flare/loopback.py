"""A FLARE server and its sites as processes on this machine, over mutual TLS."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError, missing_extra
from autofedavg.engines.flare.export import export
from autofedavg.engines.flare.provisioning import ADMIN, Kits, furnish, provision
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.processes import Guard, free_port

PATIENCE = 120.0  # seconds for server and sites to find each other
TICK = 0.2
LOOK_EVERY = 0.5  # seconds between questions to the server
BEAT = 2.0  # seconds between a site's heartbeats
HERE = Path(__file__).parent


class Loopback:
    """Server and sites on 127.0.0.1; a context manager that leaves no process behind.

    Args:
        sites: their names, which become their certificates' names.
        site_files: each site's own file, where it has one.
        runs: where the server writes run folders.
        scratch: an empty folder to live in.
    """

    def __init__(
        self, sites: Sequence[str], site_files: Mapping[str, Path], runs: Path, scratch: Path
    ) -> None:
        if find_spec("nvflare") is None:
            raise missing_extra("flare", "nvflare")
        self.sites, self.runs, self.scratch = tuple(sites), runs.absolute(), scratch.absolute()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.kits: Kits = provision(self.sites, self.port, self.scratch / "project")
        furnish(self.kits, site_files, self.sites)
        self._jobs = 0
        self._pids: dict[str, int] = {}
        self._guard = Guard()
        self._herald = _script(HERE / "admin.py", [ADMIN, str(self.kits.admin)], self.scratch)
        try:
            for name in ("server", *self.sites):
                self.start(name)
        except BaseException:
            self.close()
            raise

    def run(self, job: Job, tick: Callable[[], None]) -> None:
        """Submits one job and returns when it is over, however it went.

        Raises:
            RunError: it cannot be submitted.
        """
        self._jobs += 1
        self.carry_out(export(job, self.scratch / "submitted" / f"job-{self._jobs}"), tick)

    def carry_out(self, folder: Path, tick: Callable[[], None]) -> str:
        """Submits a job folder and waits for its end.

        Returns:
            What FLARE says of it; nothing where the server died.

        Raises:
            RunError: it cannot be submitted.
        """
        try:
            self._revive()
            self._gather(tick)
            answer = self._ask({"submit": str(folder)}, tick)
            if "job" not in answer:
                raise self._error("the job was not accepted", answer)
            server = self._pids["server"]
            while _alive(server):
                status: str = self._ask({"job": answer["job"]}, tick).get("status", "")
                if status.startswith("FINISHED"):
                    return status
                self._revive()
                _wait(LOOK_EVERY, tick)
            self._guard.sweep()  # the job's own process would write on for a while
        except (KeyboardInterrupt, SystemExit):
            self.close()  # before anybody else touches the run folder
            raise
        return ""

    def start(self, name: str) -> None:
        """Starts the server or a site that is not running."""
        kit = self.kits.server if name == "server" else self.kits.site(name)
        role = "server" if name == "server" else "client"
        told = ["secure_train=true", "org=autofedavg", "config_folder=config"]
        if name != "server":
            told += [f"uid={name}", f"heart_beat_interval={BEAT:g}"]
        module = f"nvflare.private.fed.app.{role}.{role}_train"
        self._pids[name] = self._guard.start(
            [
                *(sys.executable, "-u", "-m", module, "-m", str(kit)),
                *("-s", f"fed_{role}.json", "--set", *told),
            ],
            {"AUTOFEDAVG_RUNS": str(self.runs)},
            self.scratch / f"{name}.log",
            kit,
        )

    def pid(self, name: str) -> int:
        """The process of the server, or of a site; its job's process is a child of it."""
        return self._pids[name]

    def close(self) -> None:
        """Ends every process there is; may be called again."""
        if self._herald.stdin:
            with contextlib.suppress(OSError):
                self._herald.stdin.close()
        self._herald.kill()
        self._herald.wait()
        if self._herald.stdout:
            self._herald.stdout.close()
        self._guard.close()

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _revive(self) -> None:
        """Starts again what has died, as FLARE's own start script does."""
        for name, pid in self._pids.items():
            if not _alive(pid):
                self.start(name)

    def _gather(self, tick: Callable[[], None]) -> None:
        """Waits until the server knows the sites."""
        until = time.monotonic() + PATIENCE
        answer: dict[str, Any] = {}
        while time.monotonic() < until:
            answer = self._ask({"sites": True}, tick)
            if set(self.sites) <= set(answer.get("sites", ())):
                return
            self._revive()
            _wait(LOOK_EVERY, tick)
        raise self._error(f"server and sites did not meet within {PATIENCE:g} s", answer)

    def _ask(self, what: Mapping[str, Any], tick: Callable[[], None]) -> dict[str, Any]:
        """What the administrator's process says; an error is an answer too."""
        answer: dict[str, Any] = json.loads(_exchange(self._herald, what, tick) or "{}")
        return answer

    def _error(self, what: str, answer: Mapping[str, Any]) -> RunError:
        said = answer.get("error") or f"it knows the sites {answer.get('sites', [])}"
        return RunError(
            f"{what} ({said})", where="FLARE", remedy=f"look at the logs in {self.scratch}"
        )


def _alive(pid: int) -> bool:
    """Whether there is such a process; its guard reaps the dead at once."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _script(path: Path, arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    with (folder / f"{path.stem}.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, str(path), *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def _exchange(
    script: subprocess.Popen[str], what: Mapping[str, Any], tick: Callable[[], None] | None = None
) -> str:
    """Sends a script one line and waits for its answer."""
    if script.stdin is None or script.stdout is None:
        raise RunError("the process has no pipes", where="FLARE")
    try:
        script.stdin.write(json.dumps(what) + "\n")
        script.stdin.flush()
    except OSError:
        return ""
    while tick and not select.select([script.stdout], [], [], TICK)[0]:
        tick()
    return script.stdout.readline()


def _wait(seconds: float, tick: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        tick()
        time.sleep(min(TICK, left))
