"""The `flwr` command: registers sites, submits runs, asks how they ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.core.errors import RunError

CONNECTION = "loopback"  # the SuperLink's name in the configuration of `flwr`
PATIENCE = 120.0  # seconds a command may take
CONFIG = """\
[superlink]
default = "{name}"
[superlink.{name}]
address = "{address}"
root-certificates = {authority}
"""


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
        except subprocess.TimeoutExpired as error:
            raise self._refused(args, f"no reply within {PATIENCE:g} s") from error
        except ValueError as error:
            raise self._refused(args, (done.stderr or done.stdout).strip()[-2000:]) from error
        if not isinstance(said, dict) or not said.get("success"):
            why = said.get("error-message") if isinstance(said, dict) else None
            raise self._refused(args, str(why or done.stdout[-2000:]))
        return said

    def _refused(self, args: tuple[str, ...], why: str) -> RunError:
        return RunError(f"`flwr {args[0]}` failed: {why}", where=f"SuperLink {self._address}")


def flower_variables(home: Path) -> dict[str, str]:
    """Flower's own folder, no telemetry, and the commands of this Python first on the path."""
    scripts = str(Path(sys.executable).parent)
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(home / "flwr"),
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
    }
