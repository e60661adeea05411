"""The server's side of a job on any engine: runs or resumes the row over its sites."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import torch

from autofedavg.core.errors import AutoFedAvgError, ConfigError, DataError, RunError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Secret, Seeds
from autofedavg.engines.remote.job import Job, without_paths
from autofedavg.engines.remote.joining import JoinedSites, RemoteTransport, Said, about_data, join
from autofedavg.experiment.config import parse_run
from autofedavg.experiment.environment import environment
from autofedavg.experiment.folder import Ledger, read_json, read_toml
from autofedavg.experiment.folder_writer import RunFolder, disk_errors
from autofedavg.experiment.row_run import Work, run_row
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.run import check_run
from autofedavg.experiment.secret import secret_of
from autofedavg.experiment.selection import Paused, Seen
from autofedavg.federation.port import Federation
from autofedavg.federation.proxy import Proxy

log = logging.getLogger(__name__)


def host(job: Job, transport: RemoteTransport, runs: Path) -> Path:
    """Runs a job at the server; resumes it if its run folder exists.

    Returns:
        The run folder, `<study>/<row>/seed-<n>` below `runs`.

    Raises:
        AutoFedAvgError: the run failed; status.json says so.
    """
    path = job.folder(runs)
    if _finished(job, path):
        return path
    try:
        work = _prepare(job, transport, path)
    except AutoFedAvgError as error:
        _record_failure(path, error)
        raise
    # A site that is connected but has not joined would not join the next job either.
    outside = transport.waiting() if job.supervised else set()

    def watch(seen: Seen) -> None:
        returned = transport.waiting() - outside if job.supervised and seen.t < seen.T else set()
        if returned:
            raise Paused(
                f"{', '.join(sorted(returned))} came back",
                where=str(path),
                remedy="submit the job again: it resumes with them",
            )

    run_row(path, work, watch)
    return path


def _finished(job: Job, path: Path) -> bool:
    """Whether the run has finished.

    Raises:
        ConfigError: a run of that name began with other settings.
    """
    if not (path / "config.toml").exists():
        return False
    existing = parse_run(read_toml(path / "config.toml"), str(path))
    if without_paths(existing) != without_paths(job.row):
        raise ConfigError(
            "a run of this study, row and seed began with other settings",
            where=str(path),
            remedy="rename the row or the study, or move that run elsewhere",
        )
    return Ledger(path).finished


def _prepare(job: Job, transport: RemoteTransport, path: Path) -> Work:
    """Waits for the sites to join, and prepares the run."""
    row, seeds = job.row, Seeds(job.seed)
    known = (path / "config.toml").exists()
    before = read_json(path / "environment.json").get("data", {}) if known else {}
    server = _problem(row)
    w0, layout = server.initial(seeds)
    if layout.describe() != job.network:
        raise ConfigError(
            "the server's network has another shape than the job's",
            where=f"job {job.study}/{row.name}",
            remedy="install the same versions of autofedavg, MONAI and PyTorch everywhere",
        )
    said = join(job, transport, before.get("sites", {}))
    joined = JoinedSites(transport, job.sites, said)
    check_run(row.method, row.T, row.general.select, server, joined.roster())
    with disk_errors(path):
        secret = secret_of(path)
    joined.run = number_of(secret)
    federation = Federation(
        joined,
        quorum=row.general.quorum or None,
        exchange=row.exchange,
        seeds=seeds,
        secret=secret,
        remote=True,
        metric=row.task.metric,
        proxy=Proxy.of(server, row.training, seeds, torch.device("cpu")),
        privacy=row.privacy,
    )
    if federation.proxy and job.threads:
        torch.set_num_threads(job.threads)  # they change the last bits of what the server trains

    def about() -> dict[str, Any]:
        return environment(
            "cpu",
            seed=job.seed,
            engine=transport.name,
            asked_device="cpu",
            threads=job.threads,
            workers=len(job.sites),
            data={**about_data(said), **own},
            metric=row.task.metric,
            folds=list(row.folds),
            layers=list(row.method.layer_names(layout)),
        )

    own = {"proxy": server.proxy.cases()["train"]} if server.proxy else {}
    cautions = [*row.cautions(len(job.sites)), *_other_versions(said)]
    return Work(row, job.seed, federation, w0, layout, "cpu", about, cautions)


def number_of(secret: Secret) -> str:
    """A run's number, by which sites find what they kept for it; tells nothing of the secret."""
    return hashlib.sha256(f"run {secret.text}".encode()).hexdigest()[:32]


def _problem(row: RunConfig) -> Problem:
    """What the server knows of the problem, with its own data where the row asks for some.

    Raises:
        ConfigError: they are not on the server's disk.
    """
    try:
        return row.task.server_problem()
    except DataError as error:
        raise ConfigError(
            f"the server's own data (task.proxy) cannot be had: {error}",
            where="the server",
            remedy="put the data on the server's disk, below AUTOFEDAVG_DATA, or use a method that "
            "needs none, with task.proxy = 0",
        ) from error


def _other_versions(said: Said) -> list[str]:
    """A caution for every site whose PyTorch is not the server's version."""
    here = str(torch.__version__)
    return [
        f"site {name} has PyTorch {facts.get('torch') or 'of unknown version'}, and the server "
        f"{here}: results may differ in the last bits"
        for name, facts in sorted(said.items())
        if facts.get("torch") != here
    ]


def _record_failure(path: Path, error: AutoFedAvgError) -> None:
    """Records a failure before the run itself, unless another process is using the folder."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(path)
        try:
            with folder.lock():
                folder.set_status("failed", str(error), type(error).__name__)
        except RunError:
            log.error("%s", error)
