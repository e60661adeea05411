"""A federation on this machine, with the same SuperLink and SuperNodes as a deployment.

It uses TLS and a registered key for every site. It listens on 127.0.0.1 only, and no process
outlives the caller.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from autofedavg.core.errors import RunError, missing_extra
from autofedavg.engines.flower.control import CONNECTION, Control, Outcome, command
from autofedavg.engines.flower.export import RUNS, export, quoted
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.processes import ProcessGuard, free_port

HOST = "127.0.0.1"
TICK = 0.2
LOOK = 1.0  # seconds between two looks at the processes
AGAIN = 5.0  # seconds between two starts of one process
START = 120.0  # seconds the SuperLink may take to listen
SUPERLINK = "superlink"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


@dataclass
class Daemon:
    """A process that is started again when it ends."""

    args: list[str]
    variables: dict[str, str]
    log: Path
    process: int = 0
    started: float = 0.0


@dataclass
class Loopback:
    """SuperLink and one SuperNode per site.

    Args:
        sites: their names.
        site_files: the sites' own files, where they have one.
        runs: where the server writes.
        scratch: an empty folder for keys, logs and Flower's own files.
    """

    sites: Sequence[str]
    site_files: Mapping[str, Path]
    runs: Path
    scratch: Path
    _daemons: dict[str, Daemon] = field(default_factory=dict, init=False)
    _keys: dict[str, Path] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if find_spec("flwr") is None:
            raise missing_extra("flower", "flwr")
        self._guard = ProcessGuard()
        try:
            self._start_superlink()
            for site in self.sites:
                self._start_supernode(site)
        except BaseException:
            self.close()
            raise

    def run(self, job: Job, tick: Callable[[], None]) -> None:
        """Submits a job and returns when Flower says that it is over.

        Raises:
            RunError: it cannot be submitted, or failed before it had a run folder.
        """
        app = export(job, Path(tempfile.mkdtemp(dir=self.scratch)) / "app")
        outcome = self.run_app(app, tick)
        if not outcome.well and not (job.folder(self.runs) / "status.json").exists():
            raise RunError(outcome.details, where=f"run {outcome.run} of Flower")

    def run_app(self, app: Path, tick: Callable[[], None]) -> Outcome:
        """Submits any Flower app and returns how it ended.

        Raises:
            RunError: it cannot be submitted.
        """
        self._restart_ended()
        run = self._control.submit(app)
        superlink = self._daemons[SUPERLINK]
        at_first, looked, follower = superlink.process, time.monotonic(), self._follow(run)
        while True:
            tick()
            time.sleep(TICK)
            if time.monotonic() - looked < LOOK:
                continue
            looked = time.monotonic()
            self._restart_ended()
            if superlink.process != at_first:
                return Outcome(run, False, "the SuperLink was restarted and lost the run")
            if not self._guard.alive(follower):  # the run is over, or the connection broke
                try:
                    outcome = self._control.outcome(run)
                except RunError:
                    if self._guard.alive(at_first):
                        raise
                    continue
                if outcome is not None:
                    return outcome
                follower = self._follow(run)

    def close(self) -> None:
        """Ends every process and frees the ports."""
        self._guard.close()

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self, run: int) -> int:
        """Starts a process that writes the run's log and ends with the run."""
        log = self.scratch / "server" / f"run-{run}.log"
        args = [command("flwr"), "log", str(run), CONNECTION, "--stream"]
        return self._guard.start(args, self._variables(self.scratch / "admin"), log)

    def _start_superlink(self) -> None:
        # Of an optional extra: a module that is imported without Flower must not need them.
        from autofedavg.engines.flower.certificates import KEY, make_certificate

        server = self.scratch / "server"
        server.mkdir(parents=True)
        self._certificate = make_certificate(server, HOST)
        self._address = f"{HOST}:{free_port()}"
        host, port = self._address.split(":")
        self._daemons[SUPERLINK] = Daemon(
            [
                *(command("flower-superlink"), "--host", host, "--port", port),
                *("--ssl-ca-certfile", str(self._certificate)),
                *("--ssl-certfile", str(self._certificate)),
                *("--ssl-keyfile", str(server / KEY)),
                "--enable-supernode-auth",
                "--disable-runtime-dependency-installation",
            ],
            {**self._variables(server), RUNS: str(self.runs.absolute())},
            server / "superlink.log",
        )
        admin = self._variables(self.scratch / "admin")
        self._control = Control(self._address, self._certificate, admin)
        self._start(SUPERLINK)
        self._await_superlink()

    def _start_supernode(self, site: str) -> None:
        """Makes a site: its key, registered under its name, and its SuperNode."""
        from autofedavg.engines.flower.certificates import make_site_key

        home = self.scratch / "sites" / f"{len(self._daemons):03d}"
        home.mkdir(parents=True)
        self._keys[site] = make_site_key(home / "key")
        self._control.register(self._keys[site], site)
        config = f"site = {quoted(site)}\n"
        if site in self.site_files:
            config += f"site-file = {quoted(str(self.site_files[site].absolute()))}\n"
        (home / "node.toml").write_text(config, encoding="utf-8")
        self._daemons[f"supernode {site}"] = Daemon(
            [
                *(command("flower-supernode"), "--superlink", self._address),
                *("--root-certificates", str(self._certificate)),
                *("--auth-supernode-private-key", str(home / "key")),
                *("--host", HOST, "--port", str(free_port())),
                *("--node-config", str(home / "node.toml")),
            ],
            self._variables(home),
            home / "supernode.log",
        )
        self._start(f"supernode {site}")

    def _variables(self, home: Path) -> dict[str, str]:
        """Flower's own folder, no telemetry, and the commands of this Python on the path."""
        scripts = str(Path(sys.executable).parent)
        return {
            **QUIET,
            "FLWR_HOME": str(home / "flwr"),
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def _start(self, name: str) -> None:
        daemon = self._daemons[name]
        daemon.started = time.monotonic()
        daemon.process = self._guard.start(daemon.args, daemon.variables, daemon.log)

    def _restart_ended(self) -> None:
        """Restarts what has ended, as a service manager does in a deployment."""
        for name, daemon in self._daemons.items():
            late = time.monotonic() - daemon.started > AGAIN
            if late and not self._guard.alive(daemon.process):
                self._start(name)
                if name == SUPERLINK:  # its registrations were in memory
                    self._await_superlink()
                    for site, key in self._keys.items():
                        self._control.register(key, site)

    def _await_superlink(self) -> None:
        """Waits for the SuperLink to listen."""
        host, port = self._address.split(":")
        until = time.monotonic() + START
        superlink = self._daemons[SUPERLINK]
        while time.monotonic() < until and self._guard.alive(superlink.process):
            with socket.socket() as attempt:
                attempt.settimeout(1.0)
                if attempt.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.1)
        tail = superlink.log.read_text(errors="replace")[-2000:]
        raise RunError(f"Flower's SuperLink does not start:\n{tail}", where=str(superlink.log))
