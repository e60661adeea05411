"""A FLARE job: configuration and nothing else, for FLARE's own tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autofedavg.core.errors import ConfigError
from autofedavg.engines.remote.job import Job

APP = "app"
JOB_FILE = "autofedavg_job.json"  # a file: FLARE expands braces in its own configuration
CONTROLLER = "autofedavg.engines.flare.controller.AutoFedAvgController"
EXECUTOR = "autofedavg.engines.flare.executor.AutoFedAvgExecutor"
TASKS = ("differentiate", "evaluate", "local_train", "share_models", "validate_local")
FETCH_EVERY = 0.1  # seconds between a site's looks for a task

# Limits of FLARE's that a job may set, all told, none left to a default of minutes.
TIMES = {
    "np_streaming_per_request_timeout": 60.0,
    "np_min_download_timeout": 600.0,
    "task_check_timeout": 10.0,
    "task_check_interval": 1.0,
    "get_task_timeout": 60.0,
    "submit_task_result_timeout": 600.0,
    "dead_client_grace_period": 30.0,
    "dead_client_check_lead_time": 10.0,
    "max_runner_sync_timeout": 300.0,
    "end_run_readiness_timeout": 10.0,
}


def export(job: Job, out: Path) -> Path:
    """Writes the job folder.

    Args:
        job: what is to run.
        out: a new or empty folder.

    Returns:
        The folder, for `nvflare job submit -j`.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError("the folder is not empty", where=str(out), remedy="give a new one")
    config = out / APP / "config"
    config.mkdir(parents=True)
    _write(out / "meta.json", _meta(job))
    _write(config / "config_fed_server.json", _server())
    _write(config / "config_fed_client.json", _client())
    (config / JOB_FILE).write_text(job.text())
    return out


def text_in(config: Path) -> str:
    """The job's text in the configuration folder of a deployed app."""
    path = config / JOB_FILE
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(
            f"the job's file cannot be read ({error.strerror})",
            where=path.name,
            remedy="make the job with `autofedavg export flare`",
        ) from error


def _meta(job: Job) -> dict[str, Any]:
    return {
        "name": f"{job.study}-{job.row.name}-seed-{job.seed}",
        "resource_spec": {},
        "min_clients": job.enough,
        "deploy_map": {APP: ["server", *job.sites]},
    }


def _server() -> dict[str, Any]:
    return {
        "format_version": 2,
        "server": {"task_request_interval": FETCH_EVERY},
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [{"id": "autofedavg", "path": CONTROLLER, "args": {}}],
        **TIMES,
    }


def _client() -> dict[str, Any]:
    return {
        "format_version": 2,
        "default_task_fetch_interval": FETCH_EVERY,
        "executors": [{"tasks": list(TASKS), "executor": {"path": EXECUTOR, "args": {}}}],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        **TIMES,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
