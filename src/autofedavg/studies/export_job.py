"""Exports one run as a job, to be submitted with the engine's own tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.seeds import global_seed
from autofedavg.engines import EXPORTS
from autofedavg.engines.remote.job import WAIT, Job
from autofedavg.studies.study_file import read_study
from autofedavg.tasks.base import Task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def export_job(
    engine: str,
    study: Path | str,
    row: str,
    out: Path | str,
    *,
    seed: int | None = None,
    fold: int | None = None,
    sites: Sequence[str] | None = None,
    wait: float = WAIT,
    threads: int | None = None,
    overrides: Sequence[str] = (),
) -> Path:
    """Writes the job folder of one run: one row with one seed.

    Args:
        engine: "flare" or "flower".
        study: a built-in study's name, or a file's path.
        row: the row's name.
        out: the folder to write.
        seed: the study's first by default.
        fold: the test fold, in a study with folds.
        sites: the sites' names on the engine, if their data is on other machines. Then no
            setting of the study may depend on the data.
        wait: seconds the server waits for the sites to join.
        threads: per site, unless the site's own file sets them.
        overrides: "key=value" settings.

    Raises:
        ConfigError: the row cannot be a job, or the output folder exists.
    """
    write = EXPORTS[engine]
    out = Path(out)
    if out.exists():
        raise ConfigError("output folder already exists", where=str(out), remedy="name a new one")
    seeds, folds = ([number] if number is not None else None for number in (seed, fold))
    plan = read_study(study, overrides, seeds, [row], folds, sites)
    if len(plan.folds) > 1:
        raise ConfigError(
            f"the study has folds {sorted(plan.folds)}, and a job tests one",
            where=str(study),
            remedy="choose one with --fold",
        )
    config, _, first = plan.jobs()[0]
    names = _sites(config.task, sites, str(study))
    try:
        settled = config.resolved()
        with global_seed(0):
            settled.task.network()
    except (ConfigError, DataError) as error:
        if not sites:
            raise
        raise ConfigError(
            f"settings of the study depend on data that is not on this machine ({error.what})",
            where=f"{study}: {row}",
            remedy="set them: `autofedavg check`, run where the data is, prints their values",
        ) from error
    job = Job.of(plan.name, settled, first, names, wait=wait, threads=threads)
    made: Path = write(job, out)
    return made


def _sites(task: Task, given: Sequence[str] | None, where: str) -> list[str]:
    """The names of the sites: the data's, or those given if the data is on other machines."""
    try:
        known = task.site_names()
    except (ConfigError, DataError):
        if not given:
            raise
        known = list(given)
    names = list(given or known)
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            raise ConfigError(
                f"{name!r} is not a valid site name on an engine, or is listed twice",
                where=where,
                remedy="use letters, digits, '.', '_' and '-', and every name once",
            )
    if sorted(names) != sorted(known):
        raise ConfigError(
            f"the sites are {', '.join(known)}, not {', '.join(names)}",
            where=where,
            remedy="leave --sites out",
        )
    return names
