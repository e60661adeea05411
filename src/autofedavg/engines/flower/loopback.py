"""A whole federation on this machine: SuperLink and SuperNodes as real as in a deployment.

TLS with an authority of its own, a key for every site, registered under the site's name; nothing
leaves 127.0.0.1, and no process outlives the caller.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from autofedavg.core.errors import RunError, missing_extra
from autofedavg.engines.flower.certificates import (
    CA,
    CERTIFICATE,
    KEY,
    make_certificates,
    make_site_key,
    write_privately,
)
from autofedavg.engines.flower.control import Control, Outcome
from autofedavg.engines.flower.export import export, quoted
from autofedavg.engines.flower.resident import FOLDER, RUNS, short_home
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.processes import ProcessGuard, free_port

HOST = "127.0.0.1"
TICK = 0.2
LOOK = 1.0  # seconds between two looks at the run and at the processes
AGAIN = 5.0  # seconds between two starts of one of them
START = 120.0  # seconds the SuperLink may take to listen
DAYS = 30.0
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # seconds between two looks for a task: 1.0 by default


@dataclass
class Daemon:
    """A process that is started again where it ends."""

    args: list[str]
    variables: dict[str, str]
    log: Path
    process: int = 0
    started: float = 0.0


@dataclass
class Loopback:
    """SuperLink and one SuperNode a site.

    Args:
        sites: their names.
        site_files: the sites' own files, where they have one.
        runs: where the server writes.
        scratch: an empty folder to live in.
        resident: whether the sites run our executor, which stays between messages, instead of
            Flower's, which starts a process for each.
    """

    sites: Sequence[str]
    site_files: Mapping[str, Path]
    runs: Path
    scratch: Path
    resident: bool = True
    _daemons: dict[str, Daemon] = field(default_factory=dict, init=False)
    _keys: dict[str, bytes] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if find_spec("flwr") is None:
            raise missing_extra("flower", "flwr")
        self._workers = Path(tempfile.mkdtemp(prefix="autofedavg-", dir=short_home()))
        self._guard = ProcessGuard()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def run(self, job: Job, tick: Callable[[], None]) -> None:
        """Submits a job and returns when Flower says that it is over.

        Raises:
            RunError: it cannot be submitted, or failed before it had a run folder.
        """
        app = export(job, Path(tempfile.mkdtemp(dir=self.scratch)) / "app")
        self._mend()
        run = self._control.submit(app)
        looked = time.monotonic()
        while True:
            tick()
            time.sleep(TICK)
            if time.monotonic() - looked < LOOK:
                continue
            looked = time.monotonic()
            self._mend()
            outcome = self._control.outcome(run)
            if outcome is not None:
                self._check(job, outcome)
                return

    def close(self) -> None:
        """Ends every process and frees the ports."""
        self._guard.close()
        shutil.rmtree(self._workers, ignore_errors=True)

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, job: Job, outcome: Outcome) -> None:
        if not outcome.well and not (job.folder(self.runs) / "status.json").exists():
            raise RunError(outcome.details, where=f"run {outcome.run} of Flower")

    def _begin(self) -> None:
        server = self.scratch / "server"
        server.mkdir(parents=True)
        make_certificates(server, [HOST, "localhost"], DAYS)
        self._port = free_port()
        self._daemons["superlink"] = Daemon(
            [
                *_command("flower-superlink"),
                *("--host", HOST, "--port", str(self._port)),
                *("--ssl-ca-certfile", str(server / CA)),
                *("--ssl-certfile", str(server / CERTIFICATE)),
                *("--ssl-keyfile", str(server / KEY)),
                "--enable-supernode-auth",
                "--disable-runtime-dependency-installation",
            ],
            {**self._variables(server), RUNS: str(self.runs.absolute()), POLL: "0.5"},
            server / "superlink.log",
        )
        self._start("superlink")
        self._control = Control(f"{HOST}:{self._port}", server / CA, self._variables(server))
        self._await()
        for site in self.sites:
            self._add(site)

    def _add(self, site: str) -> None:
        """Makes a site: its key, registered under its name, its SuperNode and its executor."""
        home = self.scratch / "sites" / f"{len(self._daemons):03d}"
        home.mkdir(parents=True)
        self._keys[site] = make_site_key(home / "key")
        self._control.register(self._keys[site], site)
        config = f"site = {quoted(site)}\n"
        if site in self.site_files:
            config += f"site-file = {quoted(str(self.site_files[site].absolute()))}\n"
        (home / "node.toml").write_text(config, encoding="utf-8")
        write_privately(home / "secret", os.urandom(32).hex().encode())
        port = free_port()
        variables = {**self._variables(home), FOLDER: str(self._workers), POLL: "0.1"}
        self._daemons[f"supernode {site}"] = Daemon(
            [
                *_command("flower-supernode"),
                *("--superlink", f"{HOST}:{self._port}"),
                *("--root-certificates", str(self.scratch / "server" / CA)),
                *("--auth-supernode-private-key", str(home / "key")),
                *("--host", HOST, "--port", str(port)),
                *("--node-config", str(home / "node.toml")),
                *self._isolation(home),
            ],
            variables,
            home / "supernode.log",
        )
        self._start(f"supernode {site}")
        if self.resident:
            self._daemons[f"executor {site}"] = Daemon(
                [
                    *(sys.executable, "-m", "autofedavg.engines.flower.executor"),
                    *("--runtime-api-address", f"{HOST}:{port}", "--insecure"),
                    *("--superexec-auth-secret-file", str(home / "secret")),
                ],
                variables,
                home / "executor.log",
            )
            self._start(f"executor {site}")

    def _isolation(self, home: Path) -> list[str]:
        if not self.resident:
            return ["--isolation", "subprocess"]
        secret = str(home / "secret")
        return ["--isolation", "process", "--superexec-auth-secret-file", secret]

    def _variables(self, home: Path) -> dict[str, str]:
        """Flower's own home, silence towards outside, and our package on the path."""
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

    def _mend(self) -> None:
        """Starts what has ended again, as a service manager does in a deployment."""
        for name, daemon in self._daemons.items():
            late = time.monotonic() - daemon.started > AGAIN
            if late and not self._guard.alive(daemon.process):
                self._start(name)
                if name == "superlink":  # it has forgotten everything
                    self._await()
                    for site, key in self._keys.items():
                        self._control.register(key, site)

    def _await(self) -> None:
        """Waits for the SuperLink to listen."""
        until = time.monotonic() + START
        superlink = self._daemons["superlink"]
        while time.monotonic() < until and self._guard.alive(superlink.process):
            with socket.socket() as attempt:
                attempt.settimeout(1.0)
                if attempt.connect_ex((HOST, self._port)) == 0:
                    return
            time.sleep(0.1)
        tail = superlink.log.read_text(errors="replace")[-2000:]
        raise RunError(f"Flower's SuperLink does not start:\n{tail}", where=str(superlink.log))


def _command(name: str) -> list[str]:
    """A command of Flower's, of the environment that this Python belongs to."""
    beside = Path(sys.executable).parent / name
    return [str(beside) if beside.exists() else name]
