"""A row of a study as a job for a real engine, to be submitted with the engine's own tools."""

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
    """Writes the job folder of one row with one seed.

    Args:
        engine: "flare" or "flower".
        study: the study file.
        row: the row's name.
        out: the folder to write.
        seed: the study's first by default.
        fold: the fold that is tested, where the study has any.
        sites: names of the sites as the engine knows them, where their data is not at hand; then
            the study must leave nothing to the data.
        wait: seconds the server waits for the sites to join.
        threads: of every site, as far as the site's own file says nothing.
        overrides: "key=value" settings.

    Raises:
        ConfigError: the row cannot be a job, or the folder is there already.
    """
    write = EXPORTS[engine]
    out = Path(out)
    if out.exists():
        raise ConfigError("it is there already", where=str(out), remedy="name a new folder")
    plan = read_study(
        study,
        overrides,
        None if seed is None else [seed],
        [row],
        None if fold is None else [fold],
        sites,
    )
    jobs = plan.jobs()
    folds = {number for _, number, _ in jobs}
    if len(folds) > 1:
        raise ConfigError(
            f"the study has folds {sorted(plan.folds)}, and a job is one of them",
            where=str(study),
            remedy="choose one with --fold",
        )
    config, _, first = jobs[0]
    names = _sites(config.task, sites, str(study))
    try:
        settled = config.resolved()
        with global_seed(0):
            settled.task.network()
    except (ConfigError, DataError) as error:
        if not sites:
            raise
        raise ConfigError(
            f"the study leaves settings to data that is not at hand ({error.what})",
            where=f"{study}: {row}",
            remedy="set them: `autofedavg check`, where the data is, prints what they come to",
        ) from error
    job = Job.of(plan.name, settled, first, names, wait=wait, threads=threads)
    made: Path = write(job, out)
    return made


def _sites(task: Task, given: Sequence[str] | None, where: str) -> list[str]:
    """The names of the sites: the data's, or those given where the data is not at hand.

    Raises:
        ConfigError: names that an engine cannot know sites by, or that are not the data's.
    """
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
                f"{name!r} cannot be a site's name on an engine, or is there twice",
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
