"""A federation on this machine, with the same SuperLink and SuperNodes as a deployment.

It uses TLS and a registered key for every site. It listens on 127.0.0.1 only, and no process
outlives the caller.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.core.errors import RunError
from autofedavg.engines.flower.export import RUNS, export, quoted
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.loopback import SERVER, Daemon, LoopbackEngine, wait
from autofedavg.engines.remote.processes import free_port

HOST = "127.0.0.1"
LOOK = 1.0  # seconds between two looks at the processes
START = 120.0  # seconds the SuperLink may take to listen
CONNECTION = "loopback"  # the SuperLink's name in the configuration of `flwr`
PATIENCE = 120.0  # seconds a command may take
CONFIG = """\
[superlink]
default = "{name}"
[superlink.{name}]
address = "{address}"
root-certificates = {authority}
"""


class Loopback(LoopbackEngine):
    """SuperLink and one SuperNode per site."""

    extra, package = "flower", "flwr"

    def run(self, job: Job, tick: Callable[[], None]) -> None:
        """Submits a job and returns when Flower says that it is over.

        Raises:
            RunError: it cannot be submitted, or failed before it had a run folder.
        """
        outcome = self.run_app(export(job, Path(tempfile.mkdtemp(dir=self.scratch))), tick)
        if not outcome.well and not (job.folder(self.runs) / "status.json").exists():
            raise RunError(outcome.details, where=f"run {outcome.run} of Flower")

    def run_app(self, app: Path, tick: Callable[[], None]) -> Outcome:
        """Submits any Flower app and returns how it ended.

        Raises:
            RunError: it cannot be submitted.
        """
        self._restart_ended()
        run = self._control.submit(app)
        superlink, follower = self.pid(SERVER), self._follow(run)
        while True:
            wait(LOOK, tick)
            self._restart_ended()
            if self.pid(SERVER) != superlink:
                return Outcome(run, False, "the SuperLink was restarted and lost the run")
            if not self._guard.alive(follower):  # the run is over, or the connection broke
                try:
                    outcome = self._control.outcome(run)
                except RunError:
                    if self._guard.alive(superlink):
                        raise
                    continue
                if outcome is not None:
                    return outcome
                follower = self._follow(run)

    def start(self, name: str) -> None:
        super().start(name)
        if name == SERVER:  # its registrations are in memory
            self._await_superlink()
            for site, key in self._keys.items():
                self._control.register(key, site)

    def _follow(self, run: int) -> int:
        """Starts a process that writes the run's log and ends with the run."""
        log = self.scratch / SERVER / f"run-{run}.log"
        args = ["flwr", "log", str(run), CONNECTION, "--stream"]
        return self._guard.start(args, flower_variables(self.scratch / "admin"), log)

    def _open(self) -> None:
        # Of an optional extra: a module that is imported without Flower must not need them.
        from autofedavg.engines.flower.certificates import KEY, make_certificate, make_site_key

        self._keys: dict[str, Path] = {}
        self._port = free_port()
        address, home = f"{HOST}:{self._port}", self.scratch / SERVER
        home.mkdir()
        certificate = str(make_certificate(home, HOST))
        self._control = Control(address, certificate, flower_variables(self.scratch / "admin"))
        self._daemons[SERVER] = Daemon(
            [
                *("flower-superlink", "--host", HOST, "--port", str(self._port)),
                *("--ssl-ca-certfile", certificate, "--ssl-certfile", certificate),
                *("--ssl-keyfile", str(home / KEY), "--enable-supernode-auth"),
                "--disable-runtime-dependency-installation",
            ],
            {**flower_variables(home), RUNS: str(self.runs)},
            home / "superlink.log",
        )
        self.start(SERVER)
        for number, site in enumerate(self.sites, 1):
            home = self.scratch / "sites" / f"{number:03d}"
            home.mkdir(parents=True)
            self._keys[site] = make_site_key(home / "key")
            self._control.register(self._keys[site], site)
            config = f"site = {quoted(site)}\n"
            if site in self.site_files:
                config += f"site-file = {quoted(str(self.site_files[site].absolute()))}\n"
            (home / "node.toml").write_text(config, encoding="utf-8")
            self._daemons[f"supernode {site}"] = Daemon(
                [
                    *("flower-supernode", "--superlink", address),
                    *("--root-certificates", certificate),
                    *("--auth-supernode-private-key", str(home / "key")),
                    *("--host", HOST, "--port", str(free_port())),
                    *("--node-config", str(home / "node.toml")),
                ],
                flower_variables(home),
                home / "supernode.log",
            )
            self.start(f"supernode {site}")

    def _await_superlink(self) -> None:
        """Waits for the SuperLink to listen."""
        until = time.monotonic() + START
        superlink = self._daemons[SERVER]
        while time.monotonic() < until and self._guard.alive(superlink.process):
            with socket.socket() as attempt:
                attempt.settimeout(1.0)
                if attempt.connect_ex((HOST, self._port)) == 0:
                    return
            time.sleep(0.1)
        tail = superlink.log.read_text(errors="replace")[-2000:]
        raise RunError(f"Flower's SuperLink does not start:\n{tail}", where=str(superlink.log))


class Outcome(NamedTuple):
    """How a run ended, as Flower sees it."""

    run: int
    well: bool
    details: str


class Control:
    """A SuperLink, from its administrator's side.

    Args:
        address: host and port.
        authority: the certificate that vouches for it.
        variables: of the command's environment; FLWR_HOME among them.
    """

    def __init__(self, address: str, authority: str, variables: Mapping[str, str]) -> None:
        self._address, self._variables = address, variables
        home = Path(variables["FLWR_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        config = CONFIG.format(name=CONNECTION, address=address, authority=json.dumps(authority))
        (home / "config.toml").write_text(config, encoding="utf-8")

    def register(self, public_key: Path, name: str) -> None:
        """Admits the owner of a key under a name."""
        self._flwr("supernode", "register", str(public_key), CONNECTION, "--name", name)

    def submit(self, app: Path) -> int:
        """Starts a run of an app; returns its number."""
        return int(self._flwr("run", str(app), CONNECTION)["run-id"])

    def outcome(self, run: int) -> Outcome | None:
        """How a run ended, or None while it has not."""
        (found,) = self._flwr("list", CONNECTION, "--run-id", str(run))["runs"]
        status, _, ending = str(found["status"]).partition(":")
        if status != "finished":
            return None
        details = str(found.get("status-details") or "")
        return Outcome(run, ending == "completed", details or ending)

    def _flwr(self, *args: str) -> dict[str, Any]:
        """Runs a command of `flwr` and returns the JSON that it prints."""
        try:
            done = subprocess.run(  # noqa: S603 - Flower's own command
                ["flwr", *args, "--format", "json"],  # noqa: S607 - found by our PATH
                env={**os.environ, **self._variables},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            said = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            why = f"no reply within {PATIENCE:g} s"
        except ValueError:
            why = (done.stderr or done.stdout).strip()[-2000:]
        else:
            reply: dict[str, Any] = said if isinstance(said, dict) else {}
            if reply.get("success"):
                return reply
            why = str(reply.get("error-message") or done.stdout[-2000:])
        raise RunError(f"`flwr {args[0]}` failed: {why}", where=f"SuperLink {self._address}")


def flower_variables(home: Path) -> dict[str, str]:
    """Flower's own folder, no telemetry, and the commands of this Python first on the path."""
    scripts = str(Path(sys.executable).parent)
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(home / "flwr"),
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
    }
