"""Flower's ServerApp: runs the job in the app's configuration."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from autofedavg.engines.flower.export import DEFAULT_RUNS, RUNS, job_text
from autofedavg.engines.flower.roster import nameless_allowed
from autofedavg.engines.flower.transport import FlowerTransport
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.server import host

log = logging.getLogger(__name__)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the job, or resumes it where its run folder exists."""
    job = Job.read(job_text(context.run_config), "the app's job")
    runs = Path(os.environ.get(RUNS) or DEFAULT_RUNS).expanduser()
    logging.getLogger("autofedavg").addHandler(logging.StreamHandler())
    transport = FlowerTransport(grid, nameless=nameless_allowed())
    log.info("run folder: %s", host(job, transport, runs))
