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
from autofedavg.engines.flare.provisioning import ADMIN, prepare_kits, provision
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.processes import ProcessGuard, free_port

START_TIMEOUT = 120.0  # seconds for the sites to connect to the server
TICK = 0.2
POLL = 0.5  # seconds between requests to the server
HEARTBEAT = 2.0  # seconds between a site's heartbeats
ADMIN_SCRIPT = Path(__file__).with_name("admin.py")


class Loopback:
    """Server and sites on 127.0.0.1; a context manager that leaves no process behind.

    Args:
        sites: their names, which become the names of their certificates.
        site_files: each site's own file, where it has one.
        runs: where the server writes run folders.
        scratch: an empty folder for kits and logs.
    """

    def __init__(
        self, sites: Sequence[str], site_files: Mapping[str, Path], runs: Path, scratch: Path
    ) -> None:
        if find_spec("nvflare") is None:
            raise missing_extra("flare", "nvflare")
        self.sites, self.runs, self.scratch = tuple(sites), runs.absolute(), scratch.absolute()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.kits = provision(self.sites, self.port, self.scratch / "project")
        prepare_kits(self.kits, site_files, self.sites)
        self._jobs = 0
        self._pids: dict[str, int] = {}
        self._guard = ProcessGuard()
        with (self.scratch / "admin.log").open("ab") as log:
            self._admin = subprocess.Popen(  # noqa: S603 - our own script
                [sys.executable, str(ADMIN_SCRIPT), ADMIN, str(self.kits.admin)],
                cwd=self.scratch,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            for name in ("server", *self.sites):
                self.start(name)
        except BaseException:
            self.close()
            raise

    def run(self, job: Job, tick: Callable[[], None]) -> None:
        """Submits one job and returns when it has ended, whatever its outcome."""
        self._jobs += 1
        self.run_folder(export(job, self.scratch / "submitted" / f"job-{self._jobs}"), tick)

    def run_folder(self, folder: Path, tick: Callable[[], None]) -> str:
        """Submits a job folder; returns FLARE's final status, or nothing if the server died."""
        try:
            self._restart_dead()
            self._await_sites(tick)
            reply = self._ask({"submit": str(folder)}, tick)
            if "job" not in reply:
                raise self._error("the job was not accepted", reply)
            server = self._pids["server"]
            while _alive(server):
                status: str = self._ask({"job": reply["job"]}, tick).get("status", "")
                if status.startswith("FINISHED"):
                    return status
                self._restart_dead()
                _wait(POLL, tick)
            self._guard.sweep()  # the job's own process would continue to write for a while
        except (KeyboardInterrupt, SystemExit):
            self.close()  # before the caller touches the run folder
            raise
        return ""

    def start(self, name: str) -> None:
        """Starts the server or a site that is not running."""
        kit = self.kits.server if name == "server" else self.kits.site(name)
        role = "server" if name == "server" else "client"
        settings = ["secure_train=true", "org=autofedavg", "config_folder=config"]
        if name != "server":
            settings += [f"uid={name}", f"heart_beat_interval={HEARTBEAT:g}"]
        module = f"nvflare.private.fed.app.{role}.{role}_train"
        self._pids[name] = self._guard.start(
            [
                *(sys.executable, "-u", "-m", module, "-m", str(kit)),
                *("-s", f"fed_{role}.json", "--set", *settings),
            ],
            {"AUTOFEDAVG_RUNS": str(self.runs)},
            self.scratch / f"{name}.log",
            kit,
        )

    def pid(self, name: str) -> int:
        """The process of the server, or of a site; its job's process is a child of it."""
        return self._pids[name]

    def close(self) -> None:
        """Ends all processes; may be called again."""
        self._admin.kill()
        self._admin.wait()
        for pipe in (self._admin.stdin, self._admin.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        self._guard.close()

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _restart_dead(self) -> None:
        """Restarts processes that have died, as FLARE's own start script does."""
        for name, pid in self._pids.items():
            if not _alive(pid):
                self.start(name)

    def _await_sites(self, tick: Callable[[], None]) -> None:
        """Waits until all sites are connected to the server."""
        until = time.monotonic() + START_TIMEOUT
        reply: dict[str, Any] = {}
        while time.monotonic() < until:
            reply = self._ask({"sites": True}, tick)
            if set(self.sites) <= set(reply.get("sites", ())):
                return
            self._restart_dead()
            _wait(POLL, tick)
        raise self._error(f"the sites did not connect within {START_TIMEOUT:g} s", reply)

    def _ask(self, request: Mapping[str, Any], tick: Callable[[], None]) -> dict[str, Any]:
        """Sends the administrator's process a request; empty if that process has ended."""
        requests, replies = self._admin.stdin, self._admin.stdout
        if requests is None or replies is None:
            return {}
        try:
            requests.write(json.dumps(request) + "\n")
            requests.flush()
        except OSError:
            return {}
        while not select.select([replies], [], [], TICK)[0]:
            tick()
        reply: dict[str, Any] = json.loads(replies.readline() or "{}")
        return reply

    def _error(self, what: str, reply: Mapping[str, Any]) -> RunError:
        cause = reply.get("error") or f"connected: {', '.join(reply.get('sites', ())) or 'none'}"
        return RunError(
            f"{what} ({cause})", where="FLARE", remedy=f"see the logs in {self.scratch}"
        )


def _alive(pid: int) -> bool:
    """Whether a process exists; its guard reaps dead ones at once."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait(seconds: float, tick: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        tick()
        time.sleep(min(TICK, left))
