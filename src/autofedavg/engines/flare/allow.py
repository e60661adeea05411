"""Prepares a startup kit for our jobs: what a site's or a server's administrator runs once.

FLARE's default policy lets the project's administrator send code with a job, and read files below a
kit. A prepared kit lets nobody do either.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.errors import ConfigError, RunError
from autofedavg.engines.flare.export import CONTROLLER, EXECUTOR
from autofedavg.experiment.folder_writer import disk_errors, write_atomically

ACCESS_CHECK = "autofedavg.engines.flare.access.SiteAccessCheck"
ACCESS_FILE = "autofedavg__p_resources.json"  # FLARE's name for more parts of a main process

CODE = ("byoc", "server-predeployed-flwr")  # in a job, or elsewhere
FILES = ("shell_commands", "cat", "grep", "head", "ls", "pwd", "tail")  # together, or one by one
NONE = "none"
# All other rights of FLARE 2.9. They replace a single word that grants a role every right.
OTHERS = (
    *("download_job", "manage_job", "operate", "view"),
    *("submit_job", "clone_job", "list_job", "download_job_components", "get_job_log"),
    *("abort_task", "admin_check_status", "app_command", "aux_command", "check_resources"),
    *("deploy_app", "report_version"),
    *("register_study", "list_studies", "show_study", "remove_study"),
    *("add_study_site", "remove_study_site", "add_study_user", "remove_study_user"),
)
NO_POLICY: dict[str, Any] = {"format_version": "1.0", "permissions": {"project_admin": "any"}}
_MALFORMED = (OSError, ValueError, AttributeError, TypeError, KeyError)


@dataclass(frozen=True)
class Allowed:
    """What `allow` did to a kit.

    Attributes:
        name: the class that is allowed there.
        policy: the policy that was there: the kit's own, FLARE's, or none.
        roles: those that have lost the right to send code, or to read files.
        is_site: whether it is a site's kit, which now has an access check.
    """

    name: str
    policy: str
    roles: list[str]
    is_site: bool


def allow(kit: Path) -> Allowed:
    """Allows this package's part of a job in a startup kit, and no code that comes with a job.

    Nobody may send code with a job, or read files below the kit. A site does not stream its logs,
    and accepts messages only from the server and from itself.

    Raises:
        ConfigError: this is not the kit of a server or a site.
        RunError: a file of the kit cannot be read or written.
    """
    local, startup = kit / "local", kit / "startup"
    is_site = not (startup / "fed_server.json").exists()
    if not _existing(local / "resources.json") or not any(
        (startup / name).exists() for name in ("fed_server.json", "fed_client.json")
    ):
        raise ConfigError(
            "not a startup kit of a server or a site",
            where=str(kit),
            remedy="name a folder that `nvflare provision` made",
        )
    wanted = EXECUTOR if is_site else CONTROLLER
    resources = _resources(local / "resources.json", wanted)
    policy, roles, whose = _policy(local / "authorization.json")
    with disk_errors(kit, "run `autofedavg allow` again"):
        _write(local / "authorization.json", policy)
        if is_site:
            check = {"id": "autofedavg_access", "path": ACCESS_CHECK, "args": {}}
            _write(local / ACCESS_FILE, {"components": [check]})
        _write(local / "resources.json", resources)
    return Allowed(wanted, whose, roles, is_site)


def _resources(path: Path, wanted: str) -> dict[str, Any]:
    source = _existing(path) or path
    try:
        resources: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
        allowed: list[str] = resources.get("class_allow_list") or []
        resources["class_allow_list"] = allowed
        if wanted not in allowed:
            allowed.append(wanted)
        if wanted == EXECUTOR:  # a site's log names its files; FLARE would send it to the server
            resources["allow_log_streaming"] = False
    except _MALFORMED as error:
        raise _unreadable(source, error) from error
    return resources


def _policy(path: Path) -> tuple[dict[str, Any], list[str], str]:
    """The kit's policy without code and files, the roles that lost these rights, and its source."""
    source = _existing(path)
    try:
        # Without a policy FLARE would let everybody do everything.
        policy = json.loads(source.read_text(encoding="utf-8")) if source else NO_POLICY
        roles = {role: _reduced(rights) for role, rights in policy["permissions"].items()}
        lost = sorted(
            role for role, rights in policy["permissions"].items() if rights != roles[role]
        )
        reduced = {**policy, "permissions": roles}
    except _MALFORMED as error:
        raise _unreadable(source or path, error) from error
    whose = {None: "none", path: "the kit's own"}.get(source, "FLARE's")
    return reduced, lost, whose


def _reduced(rights: Any) -> Any:
    """The rights of a role, without those to send code and to read files."""
    if isinstance(rights, dict):
        known = {right: " ".join(right.lower().split()) for right in rights}  # as FLARE does
        denied = {right for right, name in known.items() if name in (*CODE, *FILES)}
        return {right: NONE if right in denied else who for right, who in rights.items()}
    if not isinstance(rights, str | list):
        raise TypeError(f"rights are a table, not {type(rights).__name__}")
    if rights == NONE:
        return rights
    # FLARE checks the single word before any named right, so it must be replaced.
    return {**dict.fromkeys(OTHERS, rights), **dict.fromkeys((*CODE, FILES[0]), NONE)}


def _existing(path: Path) -> Path | None:
    """A file of a kit, or the default that FLARE made for it."""
    default = path.with_name(f"{path.name}.default")
    return next((file for file in (path, default) if file.exists()), None)


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode())


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"cannot be read ({error})", where=str(path))
