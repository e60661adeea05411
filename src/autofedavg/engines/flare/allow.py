"""Makes a startup kit ready for our jobs: what a site's or a server's administrator does once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autofedavg.engines.flare.export import CONTROLLER, EXECUTOR
from autofedavg.errors import ConfigError, RunError
from autofedavg.experiment.store import disk_errors, write_atomically


def allow(kit: Path) -> str:
    """Allows this package's part of a job in a startup kit, and keeps a site's logs at the site.

    Args:
        kit: the folder of the server's, or of a site's, startup kit.

    Returns:
        The class that is allowed there.

    Raises:
        ConfigError: this is no kit of a server or a site.
    """
    local, startup = kit / "local", kit / "startup"
    wanted = CONTROLLER if (startup / "fed_server.json").exists() else EXECUTOR
    source = next(
        (
            path
            for path in (local / "resources.json", local / "resources.json.default")
            if path.exists()
        ),
        None,
    )
    if source is None or not any(
        (startup / name).exists() for name in ("fed_server.json", "fed_client.json")
    ):
        raise ConfigError(
            "this is no startup kit of a server or a site",
            where=str(kit),
            remedy="name a folder that `nvflare provision` made",
        )
    try:
        resources: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
        allowed: list[str] = resources.get("class_allow_list") or []
        resources["class_allow_list"] = allowed
        if wanted not in allowed:
            allowed.append(wanted)
        if wanted == EXECUTOR:  # a site's log names its files; FLARE would send it to the server
            resources["allow_log_streaming"] = False
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise RunError(f"cannot be read ({error})", where=str(source)) from error
    with disk_errors(kit, "call it again"):
        write_atomically(local / "resources.json", json.dumps(resources, indent=1).encode())
    return wanted
