"""Flower's ServerApp: runs the job that the app's configuration holds."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from autofedavg.core.errors import ConfigError
from autofedavg.engines.flower.resident import DEFAULT_RUNS, RUNS

log = logging.getLogger(__name__)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the job, or goes on with it where its run folder is there already."""
    from autofedavg.engines.flower.roster import nameless_allowed
    from autofedavg.engines.flower.transport import FlowerTransport
    from autofedavg.engines.remote.job import Job
    from autofedavg.engines.remote.server import host

    text = context.run_config.get("job")
    if not isinstance(text, str):
        raise ConfigError("the app holds no job", remedy="make it with `autofedavg export flower`")
    runs = Path(os.environ.get(RUNS) or DEFAULT_RUNS).expanduser()
    logging.getLogger("autofedavg").addHandler(logging.StreamHandler())
    with FlowerTransport(grid, nameless=nameless_allowed()) as fleet:
        log.info("run folder: %s", host(Job.read(text, "the app's job"), fleet, runs))
