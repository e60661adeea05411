"""Makes a startup kit ready for our jobs: what a site's or a server's administrator does once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.errors import ConfigError, RunError
from autofedavg.engines.flare.authorization import NO_POLICY, tightened
from autofedavg.engines.flare.export import CONTROLLER, EXECUTOR
from autofedavg.experiment.folder_writer import disk_errors, write_atomically

DOOR = "autofedavg.engines.flare.access.SiteDoor"
DOOR_FILE = "autofedavg__p_resources.json"  # FLARE's name for more parts of a main process


@dataclass(frozen=True)
class Allowed:
    """What was done to a kit.

    Attributes:
        name: the class that is allowed there.
        policy: the rules that were there: the kit's own, FLARE's, or none.
        roles: those that have lost the right to send code, or to read files.
        is_site: whether it is a site's kit, and has a door now.
    """

    name: str
    policy: str
    roles: list[str]
    is_site: bool


def allow(kit: Path) -> Allowed:
    """Allows this package's part of a job in a startup kit, and nothing else that comes with one.

    Nobody may send code with a job, or read files below the kit. A site keeps its logs, and takes
    messages from the server and from itself alone.

    Args:
        kit: the folder of the server's, or of a site's, startup kit.

    Raises:
        ConfigError: this is no kit of a server or a site.
        RunError: a file of the kit cannot be read or written.
    """
    local, startup = kit / "local", kit / "startup"
    is_site = not (startup / "fed_server.json").exists()
    if not _either(local / "resources.json") or not any(
        (startup / name).exists() for name in ("fed_server.json", "fed_client.json")
    ):
        raise ConfigError(
            "this is no startup kit of a server or a site",
            where=str(kit),
            remedy="name a folder that `nvflare provision` made",
        )
    wanted = EXECUTOR if is_site else CONTROLLER
    resources = _resources(local / "resources.json", wanted)
    policy, roles, whose = _policy(local / "authorization.json")
    with disk_errors(kit, "call it again"):
        _write(local / "authorization.json", policy)
        if is_site:
            door = {"id": "autofedavg_door", "path": DOOR, "args": {}}
            _write(local / DOOR_FILE, {"components": [door]})
        _write(local / "resources.json", resources)
    return Allowed(wanted, whose, roles, is_site)


def _resources(path: Path, wanted: str) -> dict[str, Any]:
    source = _either(path) or path
    try:
        resources: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
        allowed: list[str] = resources.get("class_allow_list") or []
        resources["class_allow_list"] = allowed
        if wanted not in allowed:
            allowed.append(wanted)
        if wanted == EXECUTOR:  # a site's log names its files; FLARE would send it to the server
            resources["allow_log_streaming"] = False
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise _unreadable(source, error) from error
    return resources


def _policy(path: Path) -> tuple[dict[str, Any], list[str], str]:
    """The rules of a kit without code and files, who has lost these rights, and whose rules."""
    source = _either(path)
    if source is None:  # FLARE would let everybody do everything
        return *tightened(NO_POLICY), "none"
    try:
        return (
            *tightened(json.loads(source.read_text(encoding="utf-8"))),
            "the kit's own" if source == path else "FLARE's",
        )
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise _unreadable(source, error) from error


def _either(path: Path) -> Path | None:
    """A file of a kit, or the default that FLARE made for it."""
    default = path.with_name(f"{path.name}.default")
    return next((file for file in (path, default) if file.exists()), None)


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode())


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"cannot be read ({error})", where=str(path))
