"""A FLARE server and its sites on this machine: their startup kits, and their processes."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.engines.flare.allow import allow
from autofedavg.engines.flare.export import export
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.loopback import SERVER, TICK, Daemon, LoopbackEngine, wait
from autofedavg.engines.remote.processes import free_port
from autofedavg.engines.remote.site_files import SITE_FILE

PROJECT, HOST, ADMIN = "autofedavg", "localhost", "admin@autofedavg.org"
HEARTBEAT_TIMEOUT = 20.0  # seconds without a heartbeat after which the server drops a site
START_TIMEOUT = 120.0  # seconds for the sites to connect to the server
POLL = 0.5  # seconds between requests to the server
HEARTBEAT = 2.0  # seconds between a site's heartbeats
ADMIN_SCRIPT = Path(__file__).with_name("admin.py")


class Loopback(LoopbackEngine):
    """FLARE's server and sites, over mutual TLS; a job's process is a child of theirs."""

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
        beat = f"heart_beat_interval={HEARTBEAT:g}"
        for site in self.sites:
            self._add(site, self.kits / site, "client", f"uid={site}", beat)

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


def provision(sites: Sequence[str], port: int, folder: Path) -> Path:
    """Makes a project with mutual TLS whose server listens on this machine alone.

    Returns the folder with a kit for the server (HOST), the administrator (ADMIN) and every site.

    FLARE binds to 127.0.0.1 only if the server's name is localhost.
    """
    folder.mkdir(parents=True)
    (folder / "project.yml").write_text(json.dumps(_project(sites, port)))  # YAML includes JSON
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "made"]
    done = subprocess.run(  # noqa: S603 - FLARE's own command
        [*command, "--force"], cwd=folder, capture_output=True, text=True, check=False
    )
    homes = sorted((folder / "made" / PROJECT).glob("prod_*"))
    if done.returncode or not homes:
        raise RunError(
            f"nvflare provision failed:\n{done.stdout}{done.stderr}",
            where=str(folder),
            remedy="site names may contain letters, digits, dots and dashes",
        )
    return homes[-1]


def prepare_kits(kits: Path, site_files: Mapping[str, Path], sites: Sequence[str]) -> None:
    """Does what administrators do to their kits: runs `allow`, and adds each site's file."""
    server = kits / HOST
    allow(server)
    path = server / "local" / "resources.json"
    resources: dict[str, Any] = json.loads(path.read_text())
    resources["servers"][0]["heart_beat_timeout"] = HEARTBEAT_TIMEOUT
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(server / "snapshots")
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(server / "jobs")
        elif part["id"] == "job_scheduler":
            part["args"] |= {"min_schedule_interval": 1.0, "max_schedule_interval": 2.0}
    path.write_text(json.dumps(resources, indent=1))
    for name in sites:
        allow(kits / name)
        if name in site_files:
            shutil.copyfile(site_files[name], kits / name / "local" / SITE_FILE)


def _project(sites: Sequence[str], port: int) -> dict[str, Any]:
    org, parts = "autofedavg", "nvflare.lighter.impl"
    files = {"config_folder": "config", "scheme": "http"}
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": "server and sites on one machine",
        "participants": [
            {"name": HOST, "type": "server", "org": org, "fed_learn_port": port},
            *({"name": name, "type": "client", "org": org} for name in sites),
            {"name": ADMIN, "type": "admin", "org": org, "role": "project_admin"},
        ],
        "builders": [
            {
                "path": f"{parts}.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            # Not tcp: there, a stranger who connects and stays silent blocks all other sites.
            {"path": f"{parts}.static_file.StaticFileBuilder", "args": files},
            {"path": f"{parts}.cert.CertBuilder"},
            {"path": f"{parts}.signature.SignatureBuilder"},
        ],
    }
