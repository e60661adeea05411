"""What users of a FLARE project may do at a site, or at the server: no code, and no files.

FLARE's default lets the project's administrator send code with a job and read files below a kit.
"""

from __future__ import annotations

from typing import Any

CODE = ("byoc", "server-predeployed-flwr")  # code that a job brings along, or that lies elsewhere
FILES = ("shell_commands", "cat", "grep", "head", "ls", "pwd", "tail")  # one by one, or together
DENIED = (*CODE, *FILES)
NONE = "none"
# All other rights that FLARE 2.9 knows. A role may have them all in one word; then each is named.
OTHERS = (
    *("download_job", "manage_job", "operate", "view"),
    *("submit_job", "clone_job", "list_job", "download_job_components", "get_job_log"),
    *("abort_task", "admin_check_status", "app_command", "aux_command", "check_resources"),
    *("deploy_app", "report_version"),
    *("register_study", "list_studies", "show_study", "remove_study"),
    *("add_study_site", "remove_study_site", "add_study_user", "remove_study_user"),
)
NO_POLICY = {"format_version": "1.0", "permissions": {"project_admin": "any"}}


def tightened(policy: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A policy as it is, but with no right to code or files.

    Args:
        policy: the content of an `authorization.json`.

    Returns:
        The policy, and the roles that had such a right.

    Raises:
        AttributeError: this is no policy.
        TypeError: this is no policy.
        KeyError: this is no policy.
    """
    roles = {role: _tightened(rights) for role, rights in policy["permissions"].items()}
    changed = [role for role, rights in policy["permissions"].items() if rights != roles[role]]
    return {**policy, "permissions": roles}, sorted(changed)


def _tightened(rights: Any) -> Any:
    if isinstance(rights, dict):
        return {right: NONE if _is_denied(right) else who for right, who in rights.items()}
    if not isinstance(rights, str | list):
        raise TypeError(f"rights are a table, and not {type(rights).__name__}")
    if rights == NONE:
        return rights
    # One word is asked before any right of its own is, so it cannot be narrowed in its place.
    return {**dict.fromkeys(OTHERS, rights), **dict.fromkeys((*CODE, FILES[0]), NONE)}


def _is_denied(right: str) -> bool:
    return " ".join(right.lower().split()) in DENIED  # as FLARE compares them
