"""`autofedavg ceiling`: what other weights could have gained in a run that kept its models.

The clients of the run are built again on the simulator, from the run's own settings and data.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autofedavg.core.device import checked_device
from autofedavg.core.errors import RunError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.engines.remote.loopback import with_places
from autofedavg.experiment.archive_reader import archive_at
from autofedavg.experiment.config import parse_run
from autofedavg.experiment.files import naming
from autofedavg.experiment.folder import LOADERS, read_json, read_toml, run_paths
from autofedavg.experiment.folder_writer import RunFolder, disk_errors
from autofedavg.experiment.kept_models import asked_rounds, kept_rounds
from autofedavg.experiment.oracle import Fit, Oracle, Split, ceiling
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import where_tested
from autofedavg.studies.launch import problem_of, refuse_other_data
from autofedavg.studies.machine import Machine, clients
from autofedavg.tasks.base import Progress

FIT = Fit()
log = logging.getLogger(__name__)


def measure_ceiling(
    paths: Sequence[Path],
    *,
    rounds: Sequence[int] = (),
    split: Split = "test",
    fit: Fit = FIT,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Fits the best weights of finished runs, and writes each one's ceiling.json.

    Args:
        paths: run folders, or folders above them; of several runs below one, those that kept
            models.
        rounds: whose models; all that were kept when empty.
        split: the cases, of which one half fits and the other one scores.
        fit: how weights are fitted.
        machine: where to compute: device, workers and threads.
        progress: told of the data, and of every step.

    Returns:
        The run folders.

    Raises:
        RunError: a run is unfinished, or kept no models of these rounds.
        DataError: the data are absent, or not those of the run.
    """
    machine = (machine or Machine()).resolved()
    checked_device(str(machine.device))
    runs = [RunFolder(run) for path in paths for run in _runs(path)]
    wanted = [(run, asked_rounds(run, rounds), _config(run)) for run in runs]
    problems: dict[str, Problem] = {}
    for run, mine, config in wanted:
        content = _of_run(run, mine, config, split, fit, machine, problems, progress)
        with disk_errors(run.path, "measure the ceiling again"), run.lock():
            run.write_ceiling(content)
    return [run.path for run in runs]


def _runs(path: Path) -> list[Path]:
    """The runs at or below a path; of several, those that kept models."""
    if archive_at(path):
        raise RunError(
            "an archive holds no models",
            where=str(path),
            remedy="name the folder of the run itself",
        )
    found = run_paths([path], "name a run folder or a study folder")
    kept = [run for run in found if kept_rounds(RunFolder(run))]
    if kept and (others := [str(run) for run in found if run not in kept]):
        log.warning("left out, for they kept no models: %s", ", ".join(others))
    return kept or found


def _config(run: RunFolder) -> RunConfig:
    """A finished run's settings, with its data where they are on this machine."""
    if not run.finished:
        raise RunError(
            f"this run is not finished, but {run.seen_status()}",
            where=str(run.path),
            remedy="finish it with `autofedavg resume`: its test cases are closed until then",
        )
    values = read_toml(run.path / "config.toml")
    if values.get("task", {}).get("name") == LOADERS:
        raise RunError(
            "this run was started by `federate`, with data loaders from Python",
            where=str(run.path),
            remedy="run a study whose task this package knows",
        )
    config = parse_run(values, str(run.path))
    return replace(config, task=with_places(run.path, config.task))


def _of_run(
    run: RunFolder,
    rounds: Sequence[int],
    config: RunConfig,
    split: Split,
    fit: Fit,
    machine: Machine,
    problems: dict[str, Problem],
    progress: Progress | None,
) -> dict[str, Any]:
    seeds = Seeds(int(read_json(run.path / "environment.json")["seed"]))
    refuse_other_data(run.path, config.task)
    problem = problem_of(problems, config.task, progress or _silent)
    layout = problem.initial(seeds)[1]

    with clients(problem, config.training, seeds, machine) as federation:
        federation.training_over = True
        local = where_tested(config.general.test_local, federation.K) == "full"
        oracle = Oracle(federation, layout, config.T, split, problem.metric, fit, local)
        place = run.path / "checkpoints"
        with naming(place, "the kept models cannot be read", "run the row again"):
            return ceiling(oracle, run, rounds, str(machine.device), progress)


def _silent(what: str, done: int, total: int) -> None:
    """Nobody watches."""
