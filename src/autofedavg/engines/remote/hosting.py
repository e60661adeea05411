"""The server's side of a job, engine-free: the sites join, and the row is run or gone on with."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from autofedavg import __version__
from autofedavg.client import Problem
from autofedavg.engines.remote.desk import DATA, data_digest
from autofedavg.engines.remote.job import Job, without_paths
from autofedavg.errors import (
    AutoFedAvgError,
    ConfigError,
    DataError,
    FederationError,
    RunError,
    printable,
)
from autofedavg.experiment.config import parse_run
from autofedavg.experiment.environment import environment
from autofedavg.experiment.ledger import read_json, read_toml
from autofedavg.experiment.rowrun import Work, run_row
from autofedavg.experiment.run import Paused, Seen, check_run
from autofedavg.experiment.store import RunFolder, disk_errors
from autofedavg.federation import Federation
from autofedavg.notes import Lost, Note, Site
from autofedavg.seeds import Seeds
from autofedavg.workbench import Batch

log = logging.getLogger(__name__)

LOOK = 30.0  # seconds one "hello" may take; a site that is still preparing is asked again
PAUSE = 0.5
LONGEST = 300  # characters of what a site says of an error
SPLITS = ("train", "validation", "test", "holdout")
MOST_CASES = 10**9


class RemoteFleet(Protocol):
    """What an engine supplies at the server."""

    name: str

    def ask(
        self, verb: str, notes: Mapping[str, Note], within: float | None
    ) -> Mapping[str, Note | Lost]:
        """Sends each named site its note; its answer, or why there is none."""

    def waiting(self) -> set[str]:
        """Sites that are connected and that this job cannot reach: only a new job would."""


@dataclass
class Joined:
    """A remote fleet whose sites are known.

    Every request says what data the sites joined with, so that one which comes back with other data
    refuses. What sites say of their errors is their word alone: shortened, and without more.
    """

    fleet: RemoteFleet
    sites: Sequence[Site]
    data: Mapping[str, str]

    def roster(self) -> Sequence[Site]:
        return self.sites

    def ask(
        self, verb: str, notes: Mapping[str, Note], within: float | None
    ) -> Mapping[str, Note | Lost]:
        said = {id(note): note for note in notes.values()}  # sites with one note keep one
        told = {key: Note(n.arrays, {**n.facts, DATA: dict(self.data)}) for key, n in said.items()}
        answers = self.fleet.ask(verb, {k: told[id(note)] for k, note in notes.items()}, within)
        return {site: _plain(answer) for site, answer in answers.items()}


@dataclass
class Members:
    """Who has joined, and what each said of its data."""

    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    def data(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """What environment.json records of the data: no site's names or paths."""
        sites = {**before.get("sites", {}), **self.said}
        about: dict[str, Any] = {
            "data": f"held by {len(sites)} sites",
            "cases": {name: said["cases"] for name, said in sorted(sites.items())},
            "sites": sites,
        }
        for key in ("split_sha256", "content_sha256"):
            parts = {name: said[key] for name, said in sorted(sites.items())}
            if all(parts.values()):
                about[key] = _together(parts)
        return about


def host(job: Job, fleet: RemoteFleet, runs: Path) -> Path:
    """Runs a job at the server, or goes on with it where its folder is there already.

    Args:
        job: what to run.
        fleet: the engine's transport.
        runs: the folder under which `<study>/<row>/seed-<n>` is written.

    Returns:
        The run folder.

    Raises:
        AutoFedAvgError: the run failed; status.json says so, where it had begun.
    """
    path = job.folder(runs)
    if _finished(job, path):
        return path
    try:
        work = _prepare(job, fleet, path)
    except AutoFedAvgError as error:
        _say_failed(path, error)
        raise
    # A site that is connected and does not join would not join the next job either.
    shut_out = fleet.waiting() if job.supervised else set()

    def watch(seen: Seen) -> None:
        returned = fleet.waiting() - shut_out if job.supervised and seen.t < seen.T else set()
        if returned:
            raise Paused(
                f"{', '.join(sorted(returned))} came back",
                where=str(path),
                remedy="submit the job again: it goes on with them",
            )

    run_row(path, work, watch)
    return path


def _finished(job: Job, path: Path) -> bool:
    """Whether the run is over already.

    Raises:
        ConfigError: a run of that name was begun with other settings.
    """
    if not (path / "config.toml").exists():
        return False
    begun = parse_run(read_toml(path / "config.toml"), str(path))
    if without_paths(begun) != without_paths(job.row):
        raise ConfigError(
            "a run of this study, row and seed was begun with other settings",
            where=str(path),
            remedy="give the row or the study another name, or move that run away",
        )
    return (path / "status.json").exists() and RunFolder(path).status() == "finished"


def _prepare(job: Job, fleet: RemoteFleet, path: Path) -> Work:
    """Has the sites join, and all at hand for the run."""
    row, seeds = job.row, Seeds(job.seed)
    known = (path / "config.toml").exists()
    before = read_json(path / "environment.json").get("data", {}) if known else {}
    server = Problem(row.task.network, _no_loss, {}, row.task.metric)
    w0, layout = server.initial(seeds)
    if layout.describe() != job.network:
        raise ConfigError(
            "the server's network has another shape than the job's",
            where=f"job {job.study}/{row.name}",
            remedy="install the same versions of autofedavg, MONAI and PyTorch everywhere",
        )
    members = join(job, fleet, before.get("sites", {}))
    data = members.data(before)
    sites = [Site(name, data["cases"][name]) for name in job.sites]
    check_run(row.method, row.T, row.general.select, server, sites)
    quorum = row.general.quorum or None
    digests = {site: data_digest(said) for site, said in data["sites"].items()}
    joined = Joined(fleet, sites, digests)
    federation = Federation(joined, quorum=quorum, exchange=row.exchange, seeds=seeds)

    def about() -> dict[str, Any]:
        return environment(
            "cpu",
            seed=job.seed,
            engine=fleet.name,
            asked_device="cpu",
            threads=job.threads,
            workers=len(job.sites),
            data=data,
            metric=row.task.metric,
            folds=list(row.folds),
            layers=list(row.method.layer_names(layout)),
        )

    return Work(row, job.seed, federation, w0, layout, "cpu", about)


def _say_failed(path: Path, error: AutoFedAvgError) -> None:
    """Notes a failure before the run itself, unless another process is at work there."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(path)
        try:
            with folder.lock():
                folder.set_status("failed", str(error), type(error).__name__)
        except RunError:
            log.error("%s", error)


def join(job: Job, fleet: RemoteFleet, known: Mapping[str, Mapping[str, Any]]) -> Members:
    """Waits for the sites: for all of them, or, going on with a run, for a quorum.

    Args:
        job: names the sites and says how long to wait.
        fleet: the engine's transport.
        known: what sites said when the run was begun.

    Raises:
        FederationError: too few came in time.
        ConfigError: a site has another version or another network.
        DataError: a site has other data than the run was begun with.
    """
    members = Members()
    until = time.monotonic() + job.wait
    enough = job.enough
    missing: dict[str, str] = dict.fromkeys(job.sites, "never heard of")
    refused: dict[str, AutoFedAvgError] = {}
    while missing:
        left = until - time.monotonic()
        if left <= 0:
            break
        hello = Note({}, {"version": __version__})
        for site, answer in fleet.ask(
            "hello", dict.fromkeys(missing, hello), min(LOOK, left)
        ).items():
            if isinstance(answer, Lost):
                missing[site] = answer.reason
                continue
            del missing[site]
            try:
                members.said[site] = _welcome(job, site, answer, known.get(site))
            except (ConfigError, DataError) as error:
                if not known:
                    raise
                log.warning("going on without it: %s", error)
                refused[site] = error
        if missing:
            time.sleep(min(PAUSE, max(0.0, until - time.monotonic())))
    if refused and len(members.said) < enough:
        raise next(iter(refused.values()))
    absent = sorted(missing)
    if absent and (len(members.said) < enough or not all(site in known for site in absent)):
        raise FederationError(
            f"did not join within {job.wait:g} s ({missing[absent[0]]}); "
            f"{len(members.said)} of {len(job.sites)} sites are there",
            client=", ".join(absent),
            call="hello",
            remedy="start the site, or correct the names of the sites in the study",
        )
    return members


def _welcome(job: Job, site: str, answer: Note, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a site said of itself, if it may take part."""
    said = answer.facts
    place = f"site {site}, joining"
    if "error" in said:
        why = printable(str(said["error"]))[:LONGEST]
        raise ConfigError(f"it cannot take part: {why}", where=place)
    if said.get("version") != __version__:
        raise ConfigError(
            f"it has autofedavg {_short(said.get('version'))}, and the server has {__version__}",
            where=place,
            remedy="install the same version everywhere",
        )
    if said.get("network") != job.network:
        raise ConfigError(
            f"its network is {_short(said.get('network'))}, and the server's is {job.network}",
            where=place,
            remedy="install the same versions of MONAI and PyTorch everywhere",
        )
    cases = said.get("cases")
    if not isinstance(cases, dict) or not all(
        name in SPLITS and isinstance(n, int) and not isinstance(n, bool) and 0 <= n < MOST_CASES
        for name, n in cases.items()
    ):
        raise ConfigError(f"it says it has {_short(cases)} cases", where=place)
    if not cases.get("train"):
        raise DataError("it has no training case", where=place, remedy="look at its data list")
    kept = {
        key: _short(said[key]) if isinstance(said.get(key), str) else ""
        for key in ("version", "torch", "split_sha256", "content_sha256")
    }
    for key, what in (("split_sha256", "splits"), ("content_sha256", "files")):
        if before and before.get(key) != kept[key]:
            raise DataError(
                f"the {what} of its data are not those the run was begun with",
                where=place,
                remedy="put the data back as it was, or begin anew under another name",
            )
    return {"cases": cases, **kept}


def _plain(answer: Note | Lost) -> Note | Lost:
    """An answer in which a site speaks for itself alone."""
    if isinstance(answer, Lost):
        return Lost(printable(answer.reason)[:LONGEST])
    if "error" in answer.facts:
        return Note({}, {"error": printable(str(answer.facts["error"]))[:LONGEST]})
    return answer


def _short(said: object) -> str:
    return printable(str(said))[:100]


def _together(parts: Mapping[str, str]) -> str:
    """One digest for all sites; where every site knows of all the data, its own."""
    if len(set(parts.values())) == 1:
        return next(iter(parts.values()))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _no_loss(network: nn.Module, batch: Batch) -> Tensor:
    raise NotImplementedError  # the server has no data to compute it on
