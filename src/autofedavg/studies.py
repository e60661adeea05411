"""Runs a study's rows, or goes on with them: builds the clients and hands them to `run`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.engines import ENGINES
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.trial import Trial, begun_at, placed_again
from autofedavg.errors import DataError, RunError
from autofedavg.experiment.config import Study, parse_run
from autofedavg.experiment.ledger import (
    LOADERS,
    STUDY,
    in_order,
    read_json,
    read_toml,
    run_path,
    study_home,
)
from autofedavg.experiment.rowrun import Work, run_row
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.run import check_run
from autofedavg.experiment.store import RunFolder, disk_errors, write_atomically
from autofedavg.machines import Machine, about_run, clients, machine_of
from autofedavg.observers import Observer
from autofedavg.problem import Problem
from autofedavg.seeds import Seeds, global_seed
from autofedavg.task import Progress, Task
from autofedavg.workbench import checked_device


NOTED = ("engine", "device", "threads")  # of the machine that a study's row was asked for on


class Wanted(NamedTuple):
    """A run that is to be there.

    Attributes:
        folder: where.
        config: its row.
        seed: of the run.
        machine: where to compute it if it was not begun.
    """

    folder: Path
    config: RunConfig
    seed: int
    machine: Machine


def run_study(
    study: Study,
    out: Path | str = "runs",
    machine: Machine | None = None,
    observer: Observer | None = None,
) -> Path:
    """Runs every row of a study with every seed.

    Args:
        study: from `read_study`.
        out: the folder under which `<study>/<row>/seed-<n>` is written.
        machine: where to compute.
        observer: told of progress.

    Returns:
        The study's folder.

    Raises:
        RunError: a run folder exists already; nothing has been touched then.
    """
    machine = (machine or Machine()).resolved()
    ENGINES[str(machine.engine)]  # what cannot be had is told before any work
    checked_device(str(machine.device))
    observer = observer or Observer()
    for config in study.runs:
        with global_seed(0):
            network = config.resolved(observer.preparing).task.network()
        config.method.check_network(network, config.T)
    home = Path(out) / study.name
    wanted = [
        Wanted(run_path(home, config.name, seed, fold), config, seed, machine)
        for config, fold, seed in study.jobs()
    ]
    for run in wanted:
        if (run.folder / "config.toml").exists():
            raise RunError(
                "this run folder exists already",
                where=str(run.folder),
                remedy=f"go on with `autofedavg resume {home}`, or write elsewhere with --out",
            )
    for run in wanted:
        run.config.task.check()
    _write_study(home, study, machine)
    _run_all(wanted, machine, observer)
    return home


def resume(
    path: Path | str, machine: Machine | None = None, observer: Observer | None = None
) -> Path:
    """Goes on with a run folder, or with all that a study folder still lacks.

    Gives the same bits as a run that was never stopped. Finished runs are left alone.

    Args:
        path: a run folder, of a run of a study also before it was begun, or a study folder.
        machine: where to compute; as before when None.
        observer: told of progress.
    """
    path = Path(path)
    machine = machine or Machine()
    observer = observer or Observer()
    if (path / "config.toml").is_file():
        values = read_toml(path / "config.toml")
        if values.get("task", {}).get("name") == LOADERS:
            raise RunError(
                "this run was begun from Python with data loaders of its own",
                where=str(path),
                remedy="call federate again with the same arguments and this folder",
            )
        config = parse_run(values, str(path))
        before = read_json(path / "environment.json")
        wanted = [Wanted(path, config, int(before["seed"]), machine)]
    elif (path / STUDY).is_file():
        wanted = _listed(path, machine)
    else:
        home = study_home(path)
        listed = _listed(home, machine) if home else []
        wanted = [run for run in listed if run.folder == path.resolve()]
        if not wanted:
            raise RunError(
                "this is neither a run folder nor a study folder",
                where=str(path),
                remedy="name a folder written by `autofedavg run`",
            )
    _run_all(wanted, machine, observer)
    return path


def _listed(home: Path, asked: Machine) -> list[Wanted]:
    """All runs of a study folder."""
    found = []
    for row in read_json(home / STUDY)["runs"]:
        config = parse_run(row["config"], str(home))
        folds = sorted({fold for fold, _ in row["jobs"] if fold is not None})
        noted = row.get("machine", {})
        machine = replace(asked, **{key: getattr(asked, key) or noted.get(key) for key in NOTED})
        found += [
            Wanted(
                run_path(home, config.name, seed, fold),
                config if fold is None else config.on_fold(fold, folds),
                seed,
                machine,
            )
            for fold, seed in row["jobs"]
        ]
    return found


def _run_all(wanted: Sequence[Wanted], asked: Machine, observer: Observer) -> None:
    problems: dict[str, Problem] = {}
    with ExitStack() as engines:
        trials: dict[Path, Trial] = {}
        for index, (path, config, seed, machine) in enumerate(wanted, 1):
            if (path / "status.json").exists() and RunFolder(path).status() == "finished":
                observer.found(path)
                continue
            known = (path / "config.toml").exists()
            if known:  # what was begun goes on as it was begun
                config = parse_run(read_toml(path / "config.toml"), str(path))
                config = config.with_task(placed_again(path, config.task))
                config.folds = tuple(read_json(path / "environment.json").get("folds", ()))
            config = config.resolved(observer.preparing)
            used = _machine(path, asked) if known else machine.resolved()
            observer.started(config, seed, index, len(wanted), path)
            if used.remote:
                _run_as_job(path, config, seed, used, observer, trials, engines)
            else:
                key = _problem(problems, config.task, observer.preparing)
                _run_one(path, config, seed, used, problems[key], observer)
            observer.finished(path)


def _machine(path: Path, asked: Machine) -> Machine:
    """Where to go on with a run that was begun."""
    used = machine_of(path, asked)
    if not used.remote:
        return used
    if not (begun := begun_at(path)) and asked.engine is None:
        raise RunError(
            "this run was begun in a deployment",
            where=str(path),
            remedy="submit its job again with the engine's own tools: it goes on from there",
        )
    return replace(used, device=asked.device or begun.get("device") or used.device)


def _run_as_job(
    path: Path,
    config: RunConfig,
    seed: int,
    machine: Machine,
    observer: Observer,
    trials: dict[Path, Trial],
    engines: ExitStack,
) -> None:
    """One row on a real engine on this machine; its processes serve the rows after it too."""
    study = path.parents[2 if config.folds else 1]
    config.task.prepare(observer.preparing)  # once, before every site looks for it
    job = Job.of(
        study.name,
        config,
        seed,
        config.task.site_names(),
        wait=machine.wait,
        threads=machine.threads or 1,
        supervised=machine.supervise,
    )
    if job.folder(study.parent) != path:
        raise RunError(
            "this run folder was renamed, and the server finds it by its name",
            where=str(path),
            remedy=f"call it {job.folder(study.parent)} again",
        )
    if study.parent not in trials:
        opens = ENGINES[str(machine.engine)]
        trial = Trial(opens, study.parent, str(machine.device), machine.supervise)
        trials[study.parent] = engines.enter_context(trial)
    trials[study.parent].run(job, config.task, observer.round)


def _run_one(
    path: Path,
    config: RunConfig,
    seed: int,
    machine: Machine,
    problem: Problem,
    observer: Observer,
) -> None:
    seeds = Seeds(seed)
    known = (path / "config.toml").exists()
    if known:
        _refuse_other_data(path, config.task)
    quorum = config.general.quorum or None
    select = config.general.select
    check_run(config.method, config.T, select, problem)
    with clients(problem, config.training, seeds, machine, quorum, config.exchange) as federation:
        w0, layout = problem.initial(seeds)

        def about() -> dict[str, Any]:
            data = config.task.describe()
            layers = config.method.layer_names(layout)
            return about_run(machine, federation, seed, data, problem.metric, config.folds, layers)

        work = Work(config, seed, federation, w0, layout, str(machine.device), about)
        run_row(path, work, observer.round)


def _refuse_other_data(path: Path, task: Task) -> None:
    """A run goes on with the cases and files it was begun with, or not at all."""
    before, now = read_json(path / "environment.json").get("data", {}), task.describe()
    for key, what in (("split_sha256", "splits"), ("content_sha256", "files")):
        if key in before and before[key] != now.get(key):
            raise DataError(
                f"the {what} of the data are not those the run was begun with",
                where=str(path),
                remedy="put the data back as it was, or begin anew elsewhere",
            )


def _problem(known: dict[str, Problem], task: Task, progress: Progress) -> str:
    """Has the task's problem at hand, prepared once for all rows that share it; its key."""
    key = task.model_dump_json()
    if key not in known:
        known.clear()  # one data set in memory at a time
        known[key] = task.problem(progress)
    return key


def _write_study(home: Path, study: Study, machine: Machine) -> None:
    """Notes rows and seeds beside the runs; those of an earlier call stay listed."""
    path = home / STUDY
    rows = {row["config"]["name"]: row for row in read_json(path)["runs"]} if path.exists() else {}
    for config in study.runs:
        given = config.values(given_only=True)
        row = rows.setdefault(config.name, {"jobs": [], "config": given})
        if row["config"] != given:
            raise RunError(
                f"row {config.name!r} is in this study folder with other settings",
                where=str(home),
                remedy="give the row another name, or write elsewhere with --out",
            )
        jobs = [[fold, seed] for fold in study.folds or (None,) for seed in study.seeds]
        if any((job[0] is None) != (jobs[0][0] is None) for job in row["jobs"]):
            raise RunError(
                f"row {config.name!r} is in this study folder "
                + ("without folds" if study.folds else "with folds"),
                where=str(home),
                remedy="write elsewhere with --out: the two cannot be pooled",
            )
        row["jobs"] += [job for job in jobs if job not in row["jobs"]]
        row["machine"] = {key: getattr(machine, key) for key in NOTED}
    content = {
        "name": study.name,
        "title": study.title,
        "baseline": study.baseline,
        "rows": list(study.rows),
        "runs": in_order(rows, study.rows),
    }
    with disk_errors(home):
        home.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
