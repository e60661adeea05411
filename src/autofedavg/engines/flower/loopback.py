"""A federation on this machine, with the same SuperLink and SuperNodes as a deployment.

It uses TLS and a registered key for every site. It listens on 127.0.0.1 only, and no process
outlives the caller.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from autofedavg.core.errors import RunError
from autofedavg.engines.flower.control import CONNECTION, Control, Outcome, flower_variables
from autofedavg.engines.flower.export import RUNS, export, quoted
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.loopback import SERVER, Daemon, LoopbackEngine, wait
from autofedavg.engines.remote.processes import free_port

HOST = "127.0.0.1"
LOOK = 1.0  # seconds between two looks at the processes
START = 120.0  # seconds the SuperLink may take to listen


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
