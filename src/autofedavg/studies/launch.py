"""Runs and resumes studies: builds the clients of each run and hands them to `run_row`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from autofedavg.core.bank import Layout
from autofedavg.core.device import checked_device, release_memory
from autofedavg.core.errors import DataError, RunError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds, global_seed
from autofedavg.engines import ENGINES
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.loopback import JobRunner, places_of, with_places
from autofedavg.experiment.config import Study, parse_run
from autofedavg.experiment.files import refuse_file
from autofedavg.experiment.folder import (
    LOADERS,
    STUDY,
    read_json,
    read_toml,
    run_path,
    study_home,
)
from autofedavg.experiment.row_run import Work, run_row
from autofedavg.experiment.run import check_run
from autofedavg.experiment.secret import kept_secret
from autofedavg.studies.machine import Machine, about_run, clients, machine_of
from autofedavg.studies.observer import Observer
from autofedavg.studies.parallel import check_at_once, run_in_parallel
from autofedavg.studies.study_file import PlannedRun, planned_runs, write_study_json
from autofedavg.tasks.base import Progress, Task

# By engine, folder, device and supervision: runs of one study may have begun in different places.
Runners = dict[tuple[str, Path, str, bool], JobRunner]
Problems = dict[str, Problem]  # by the task's settings


def run_study(
    study: Study,
    out: Path | str = "runs",
    machine: Machine | None = None,
    observer: Observer | None = None,
    at_once: int = 1,
    *,
    again: bool = False,
) -> Path:
    """Runs every row of a study with every seed.

    Args:
        study: from `read_study`.
        out: the folder under which `<study>/<row>/seed-<n>` is written.
        machine: where to compute.
        observer: receives progress.
        at_once: runs in parallel, in as many processes if more than one; then one that fails does
            not stop the others. Never changes results.
        again: whether runs that exist are continued; else they are refused.

    Returns:
        The study's folder.

    Raises:
        RunError: a run folder exists already, or cannot be made; nothing was written.
    """
    machine = (machine or Machine()).resolved()
    check_at_once(at_once, machine)
    ENGINES[str(machine.engine)]  # a missing engine or device is an error before any work
    checked_device(str(machine.device))
    observer = observer or Observer()
    for config in study.runs:
        with global_seed(0):
            network = config.resolved(observer.preparing).task.network()
        config.check_network(network)
    home = Path(out) / study.name
    runs = [
        PlannedRun(run_path(home, config.name, seed, fold), config, seed, machine)
        for config, fold, seed in study.jobs()
    ]
    for run in runs:
        refuse_file(run.folder)
        if run.started and not again:
            raise RunError(
                "this run folder exists already",
                where=str(run.folder),
                remedy=f"continue with `autofedavg resume {home}`, or choose another --out",
            )
    for run in runs:
        run.config.task.check()
    write_study_json(home, study, machine)
    _run_all(runs, machine, observer, at_once)
    return home


def resume(
    path: Path | str,
    machine: Machine | None = None,
    observer: Observer | None = None,
    at_once: int = 1,
) -> Path:
    """Continues a run, or every unfinished run of a study, from the last checkpoint.

    The result is bit-identical to a run that was never stopped. Finished runs stay as they are.

    Args:
        path: a study folder, or a run folder; a run that a study plans may not have one yet.
        machine: where to compute; as before when None.
        observer: receives progress.
        at_once: runs in parallel, as for `run_study`.
    """
    machine = machine or Machine()
    check_at_once(at_once, machine)
    _run_all(_runs_at(Path(path), machine), machine, observer or Observer(), at_once)
    return Path(path)


def go_on(folder: Path, machine: Machine, problems: Problems) -> None:
    """Starts or continues one run, with the data that this process has read for earlier ones."""
    _run_all(_runs_at(folder, machine), machine, Observer(), 1, problems)


def _runs_at(path: Path, machine: Machine) -> list[PlannedRun]:
    """The runs of a study folder, or the one of a run folder."""
    if (path / "config.toml").is_file():
        values = read_toml(path / "config.toml")
        if values.get("task", {}).get("name") == LOADERS:
            raise RunError(
                "this run was started by `federate`, with data loaders from Python",
                where=str(path),
                remedy="call `federate` again with the same arguments and this folder",
            )
        config = parse_run(values, str(path))
        before = read_json(path / "environment.json")
        return [PlannedRun(path, config, int(before["seed"]), machine)]
    if (path / STUDY).is_file():
        return planned_runs(path, machine)
    linked = (up for up in path.absolute().parents[1:3] if (up / STUDY).is_file())
    home = study_home(path) or next(linked, None)  # a row's folder may be a link elsewhere
    listed = planned_runs(home, machine) if home else []
    if runs := [run for run in listed if run.folder.resolve() == path.resolve()]:
        return runs
    raise RunError(
        "neither a run folder nor a study folder", where=str(path), remedy=_near_by(path)
    )


def _near_by(path: Path) -> str:
    """What to name instead of a folder that cannot be continued: the study below or above it."""
    ups = (*path.parents, *path.absolute().parents, *path.resolve().parents)  # as it was written
    above = [up for up in ups if (up / STUDY).is_file()]
    known = above[:1] or sorted(file.parent for file in path.glob(f"*/{STUDY}"))
    if not known:
        return "name a folder written by `autofedavg run`"
    named = [quote(str(home)) for home in known]
    if len(named) > 1:
        return f"name one of these study folders: {', '.join(named)}"
    return f"write `autofedavg resume {named[0]}`, or name a run that this study has"


def _run_all(
    runs: Sequence[PlannedRun],
    asked: Machine,
    observer: Observer,
    at_once: int,
    problems: Problems | None = None,
) -> None:
    if at_once > 1 and len(runs) > 1:
        run_in_parallel(runs, asked, observer, at_once)
        return
    problems = {} if problems is None else problems
    runners: Runners = {}
    with ExitStack() as engines:
        for index, planned in enumerate(runs, 1):
            if planned.finished:
                observer.found(planned.folder)
                continue
            run = _settled(planned, asked, observer)
            observer.started(run.config, run.seed, index, len(runs), run.folder)
            if run.machine.remote:
                _run_as_job(run, observer, runners, engines)
            else:
                problem = problem_of(problems, run.config.task, observer.preparing)
                release_memory(str(run.machine.device))  # of the run before, and of its data
                _run_simulated(run, problem, observer)
            observer.finished(run.folder)


def _settled(run: PlannedRun, asked: Machine, observer: Observer) -> PlannedRun:
    """The run with its last open settings; one that has started keeps its own config.toml."""
    path, config = run.folder, run.config
    if run.started:
        config = parse_run(read_toml(path / "config.toml"), str(path))
        folds = tuple(read_json(path / "environment.json").get("folds", ()))
        config = replace(config, task=with_places(path, config.task), folds=folds)
    machine = _machine(path, asked) if run.started else run.machine.resolved()
    return run._replace(config=config.resolved(observer.preparing), machine=machine)


def _machine(path: Path, asked: Machine) -> Machine:
    """Where to continue a run; options without an effect there are refused."""
    used = machine_of(path, asked).resolved()
    if not used.remote:
        return used
    if not (begun := places_of(path)) and asked.engine is None:
        raise RunError(
            "this run was started by a deployed server",
            where=str(path),
            remedy="submit its job again with the engine's own tools: it continues from there",
        )
    return replace(used, device=asked.device or begun.get("device") or used.device)


def _run_as_job(run: PlannedRun, observer: Observer, runners: Runners, engines: ExitStack) -> None:
    """Runs one row on a real engine on this machine; later rows use the same processes."""
    config, machine = run.config, run.machine
    study = run.folder.parents[2 if config.folds else 1]
    config.task.prepare(observer.preparing)  # once, not once per site
    if config.privacy.on:
        config.budgets(Layout.of(config.task.network()), config.task.problem().sites)
    job = Job.of(
        study.name,
        config,
        run.seed,
        config.task.site_names(),
        wait=machine.wait,
        threads=machine.threads or 1,
        supervised=machine.supervise,
    )
    if job.folder(study.parent) != run.folder:
        raise RunError(
            "the run folder was renamed, and the server finds it by its name",
            where=str(run.folder),
            remedy=f"rename it back to {job.folder(study.parent)}",
        )
    key = (str(machine.engine), study.parent, str(machine.device), machine.supervise)
    if key not in runners:
        runners[key] = engines.enter_context(JobRunner(ENGINES[key[0]], *key[1:]))
    runners[key].run(job, config.task, observer.round)


def _run_simulated(run: PlannedRun, problem: Problem, observer: Observer) -> None:
    config, machine, seeds = run.config, run.machine, Seeds(run.seed)
    if run.started:
        refuse_other_data(run.folder, config.task)
    check_run(config.method, config.T, config.general.select, problem)
    if config.privacy.on:
        config.budgets(Layout.of(problem.network()), problem.sites)
    secret = kept_secret(run.folder)  # of a run that was started on a real engine
    given = (machine, config.general.quorum, config.exchange, secret, config.privacy)
    with clients(problem, config.training, seeds, *given) as federation:
        w0, layout = problem.initial(seeds)

        def about() -> dict[str, Any]:
            data, layers = config.task.describe(), config.method.layer_names(layout)
            return about_run(
                machine, federation, run.seed, data, problem.metric, config.folds, layers
            )

        work = Work(config, run.seed, federation, w0, layout, str(machine.device), about)
        run_row(run.folder, work, observer.round)


def refuse_other_data(path: Path, task: Task) -> None:
    """Refuses to continue a run with other cases or files than it started with."""
    before, now = read_json(path / "environment.json").get("data", {}), task.describe()
    for key, what in (("split_sha256", "splits"), ("content_sha256", "files")):
        if key in before and before[key] != now.get(key):
            raise DataError(
                f"the {what} of the data have changed since the run started",
                where=str(path),
                remedy="restore the data, or start a new run with another --out",
            )


def problem_of(known: Problems, task: Task, progress: Progress) -> Problem:
    """The task's problem, prepared once for all rows that share it."""
    key = task.model_dump_json()
    if key not in known:
        known.clear()  # one data set in memory at a time
        known[key] = task.problem(progress)
    return known[key]
