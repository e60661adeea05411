"""Writes a FLARE job folder: configuration only, no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autofedavg.core.errors import ConfigError
from autofedavg.engines.remote.job import Job
from autofedavg.experiment.files import make_folder
from autofedavg.federation.messages import WITH_MODELS

APP = "app"
JOB_FILE = "autofedavg_job.json"  # a file of its own: FLARE expands braces in its configuration
CONTROLLER = "autofedavg.engines.flare.controller.AutoFedAvgController"
EXECUTOR = "autofedavg.engines.flare.executor.AutoFedAvgExecutor"
FETCH_EVERY = 0.1  # seconds between a site's requests for a task

# Every time limit that a job may set: FLARE's defaults are minutes.
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
_COMMON: dict[str, Any] = {
    "format_version": 2,
    "task_data_filters": [],
    "task_result_filters": [],
    "components": [],
    **TIMES,
}


def export(job: Job, out: Path) -> Path:
    """Writes the folder for `nvflare job submit -j`; it must be new or empty."""
    if out.exists() and any(out.iterdir()):
        raise ConfigError("the folder is not empty", where=str(out), remedy="give a new one")
    config = out / APP / "config"
    make_folder(config)
    meta = {
        "name": f"{job.study}-{job.row.name}-seed-{job.seed}",
        "resource_spec": {},
        "min_clients": job.enough,
        "deploy_map": {APP: ["server", *job.sites]},
    }
    server = {
        "server": {"task_request_interval": FETCH_EVERY},
        "workflows": [{"id": "autofedavg", "path": CONTROLLER, "args": {}}],
    }
    executor = {"tasks": sorted(WITH_MODELS), "executor": {"path": EXECUTOR, "args": {}}}
    client = {"default_task_fetch_interval": FETCH_EVERY, "executors": [executor]}
    _write(out / "meta.json", meta)
    _write(config / "config_fed_server.json", _COMMON | server)
    _write(config / "config_fed_client.json", _COMMON | client)
    (config / JOB_FILE).write_text(job.text())
    return out


def read_job_text(config: Path) -> str:
    """Reads the job's text from the configuration folder of a deployed app."""
    path = config / JOB_FILE
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(
            f"the job's file cannot be read ({error.strerror})",
            where=path.name,
            remedy="make the job with `autofedavg export flare`",
        ) from error


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
