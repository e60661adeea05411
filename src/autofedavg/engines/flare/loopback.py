"""A FLARE server and its sites as processes on this machine, over mutual TLS."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.engines.flare.export import export
from autofedavg.engines.flare.provisioning import ADMIN, HOST, prepare_kits, provision
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.loopback import SERVER, TICK, Daemon, LoopbackEngine, wait
from autofedavg.engines.remote.processes import free_port

START_TIMEOUT = 120.0  # seconds for the sites to connect to the server
POLL = 0.5  # seconds between requests to the server
HEARTBEAT = 2.0  # seconds between a site's heartbeats
ADMIN_SCRIPT = Path(__file__).with_name("admin.py")


class Loopback(LoopbackEngine):
    """FLARE's server and sites; a job's process is a child of theirs."""

    extra, package = "flare", "nvflare"

    def run(self, job: Job, tick: Callable[[], None]) -> None:
        self.run_folder(export(job, Path(tempfile.mkdtemp(dir=self.scratch))), tick)

    def run_folder(self, folder: Path, tick: Callable[[], None]) -> str:
        """Submits a job folder; returns FLARE's final status, or nothing if the server died."""
        try:
            self._restart_ended()
            self._await_sites(tick)
            reply = self._ask({"submit": str(folder)}, tick)
            if "job" not in reply:
                raise self._error("the job was not accepted", reply)
            server = self.pid(SERVER)
            while self._guard.alive(server):
                status: str = self._ask({"job": reply["job"]}, tick).get("status", "")
                if status.startswith("FINISHED"):
                    return status
                self._restart_ended()
                wait(POLL, tick)
            self._guard.sweep()  # the job's own process would continue to write for a while
        except (KeyboardInterrupt, SystemExit):
            self.close()  # before the caller touches the run folder
            raise
        return ""

    def _open(self) -> None:
        self.port = free_port()
        self.kits = provision(self.sites, self.port, self.scratch / "project")
        prepare_kits(self.kits, self.site_files, self.sites)
        with (self.scratch / "admin.log").open("ab") as log:
            self._admin = subprocess.Popen(  # noqa: S603 - our own script
                [sys.executable, str(ADMIN_SCRIPT), ADMIN, str(self.kits / ADMIN)],
                cwd=self.scratch,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._held.callback(self._admin.communicate)
        self._held.callback(self._admin.kill)
        self._add(SERVER, self.kits / HOST, "server")
        for site in self.sites:
            self._add(
                site,
                self.kits / site,
                "client",
                f"uid={site}",
                f"heart_beat_interval={HEARTBEAT:g}",
            )

    def _add(self, name: str, kit: Path, role: str, *settings: str) -> None:
        """Starts the process of a kit."""
        self._daemons[name] = Daemon(
            [
                *(sys.executable, "-u", "-m", f"nvflare.private.fed.app.{role}.{role}_train"),
                *("-m", str(kit), "-s", f"fed_{role}.json", "--set", "secure_train=true"),
                *("org=autofedavg", "config_folder=config", *settings),
            ],
            {"AUTOFEDAVG_RUNS": str(self.runs)},
            self.scratch / f"{name}.log",
            kit,
        )
        self.start(name)

    def _await_sites(self, tick: Callable[[], None]) -> None:
        """Waits until all sites are connected to the server."""
        until = time.monotonic() + START_TIMEOUT
        reply: dict[str, Any] = {}
        while time.monotonic() < until:
            reply = self._ask({"sites": True}, tick)
            if set(self.sites) <= set(reply.get("sites", ())):
                return
            self._restart_ended()
            wait(POLL, tick)
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
