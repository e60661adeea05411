"""The server's side of a FLARE job: runs the row, from its last checkpoint if there is one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from autofedavg.core.errors import AutoFedAvgError
from autofedavg.engines.flare.export import JOB_FILE, read_job_text
from autofedavg.engines.flare.transport import FlareTransport
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.server import host
from autofedavg.experiment.selection import Paused

RUNS = "autofedavg-runs"  # in the server's workspace, where the end of a job does not remove it
RUNS_VARIABLE = "AUTOFEDAVG_RUNS"


class AutoFedAvgController(Controller):  # type: ignore[misc]
    """Runs one row with one seed over the sites of this job."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Does nothing: `control_flow` does all the work."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Does nothing: no resource is held."""

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """Drops a reply that came after its deadline: the site has been recorded as lost."""
        self.log_info(fl_ctx, f"{client.name} answered {task_name} too late")

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        workspace = fl_ctx.get_engine().get_workspace()
        number = fl_ctx.get_job_id()
        runs = Path(os.environ.get(RUNS_VARIABLE) or Path(workspace.get_root_dir()) / RUNS)
        try:
            job = Job.read(read_job_text(Path(workspace.get_app_config_dir(number))), JOB_FILE)
            try:
                host(job, FlareTransport(self, fl_ctx, abort_signal, job.sites), runs)
            finally:
                _copy_for_download(job, runs, Path(workspace.get_run_dir(number)))
        except Paused as pause:  # on purpose: for FLARE the job is complete
            self.log_info(fl_ctx, str(pause))
        except AutoFedAvgError as error:
            self.system_panic(str(error), fl_ctx)


def _copy_for_download(job: Job, runs: Path, run_dir: Path) -> None:
    """Copies the run folder into the folder that `nvflare job download` fetches."""
    folder = job.folder(runs)
    if folder.is_dir():
        shutil.copytree(
            folder,
            run_dir / RUNS / folder.relative_to(runs),
            ignore=shutil.ignore_patterns("last-*", ".*"),
            dirs_exist_ok=True,
        )
