"""`autofedavg tune`: tries equally many settings for every row, and writes the tuned study.

Trials are runs of a study of their own, `<study>-trials`. Validation scores choose among them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.experiment.config import Study
from autofedavg.experiment.files import refuse_file
from autofedavg.experiment.folder import run_path
from autofedavg.experiment.folder_writer import disk_errors, write_atomically
from autofedavg.experiment.toml_text import to_toml
from autofedavg.experiment.trial_names import diverged, trial_name
from autofedavg.experiment.trials import Trials, plain_row
from autofedavg.experiment.validation import Values
from autofedavg.report.read import read_results
from autofedavg.report.repeats import Results
from autofedavg.report.trials import Trial, best_of, trials_in
from autofedavg.studies.launch import run_study
from autofedavg.studies.machine import Machine
from autofedavg.studies.observer import Observer
from autofedavg.studies.study_file import (
    changed,
    read_trials,
    study_path,
    study_values,
    write_study_json,
)
from autofedavg.tasks import TASKS

log = logging.getLogger(__name__)


def tune_study(
    study: Path | str,
    out: Path | str = "runs",
    machine: Machine | None = None,
    observer: Observer | None = None,
    at_once: int = 1,
    *,
    only: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
) -> tuple[Path, Results]:
    """Runs the trials that are not finished, and writes the study with each row's best settings.

    Args:
        study: a built-in study's name, or the path of a TOML file.
        out: the folder of `<study>-trials/` and of `<study>-tuned.toml`.
        machine: where to compute.
        observer: receives progress.
        at_once: trials in parallel, as for `run_study`.
        only: rows to tune; all when empty. The tuned study has no others.
        overrides: "key=value" settings of every row and trial, as for `--set`. The tuned study has
            them as well.

    Returns:
        The tuned study's file, and the trials as a report reads them.

    Raises:
        ConfigError: the study or its ranges are wrong; nothing was run.
        RunError: a row has no trial with a validation score.
    """
    plan, trials = read_trials(study, only, overrides)
    home = Path(out) / plan.name
    refuse_file(home)
    _run_trials(plan, home, machine, observer, at_once)
    results = read_results([home / run.name for run in plan.runs])
    chosen = {}
    for row, mine in trials_in(results).items():
        best = best_of(mine)
        if best is None:
            raise RunError(
                "no trial of this row has a validation score",
                where=str(home / trial_name(row, 1)),
                remedy="give the sites validation cases, or other values to the row",
            )
        chosen[row] = best
    path = study_path(study)
    raw = changed(study_values(path), overrides)
    text = _tuned(raw, path, Path(out), trials, chosen)
    place = Path(out) / f"{plan.name.removesuffix('-trials')}-tuned.toml"
    with disk_errors(place, "tune again: finished trials are kept"):
        if lost := [name for name in _rows_in(place) if name not in chosen]:
            log.warning("%s no longer has %s: tune them as well, or all rows; finished trials are "
                        "not run again", place, ", ".join(lost))  # fmt: skip
        write_atomically(place, text.encode())
    return place, results


def _rows_in(place: Path) -> list[str]:
    """The rows of an earlier tuned study, where there is one."""
    if not place.exists():
        return []
    with suppress(ConfigError):  # whatever it is, it is written anew
        rows = study_values(place).get("run")
        listed = rows if isinstance(rows, list) else []
        return [str(row.get("name", "")) for row in listed if isinstance(row, dict)]
    return []


def _run_trials(
    plan: Study, home: Path, machine: Machine | None, observer: Observer | None, at_once: int
) -> None:
    """Runs all trials; one that diverges has no score, and does not stop the others."""
    failed = _diverged(plan, home)
    if failed:  # before they are left out: they may have had other settings
        write_study_json(home, plan, (machine or Machine()).resolved())
    while True:
        left = tuple(run for run in plan.runs if run.name not in failed)
        try:
            run_study(replace(plan, runs=left), home.parent, machine, observer, at_once, again=True)
            return
        except AutoFedAvgError:
            now = _diverged(plan, home)
            if now == failed:
                raise
            failed = now


def _diverged(plan: Study, home: Path) -> set[str]:
    """Trials in which training failed: running them again would give the same."""
    jobs = plan.jobs()
    return {run.name for run, fold, seed in jobs if diverged(run_path(home, run.name, seed, fold))}


def _tuned(raw: Values, path: Path, out: Path, trials: Trials, chosen: Mapping[str, Trial]) -> str:
    """The study with the chosen settings, as TOML."""
    head = dict(raw.get("study", {}))
    name = head.get("name", path.stem)
    head |= {"name": f"{name}-tuned", "title": f"{head.get('title', name)}, tuned"}
    if head.get("baseline", "") not in chosen:
        head.pop("baseline", None)
    base, task = raw.get("base", {}), raw.get("base", {}).get("task", {})
    each = {len(changes) for changes in trials.changes.values()}
    lines = [
        f"# {name} with settings chosen by validation scores, {each.pop()} trials a row.",
        f"# Written by `autofedavg tune`; the trials are runs of the study {name}-trials.",
        "",
        to_toml({"study": head, "base": _moved(base, task, path.parent, out)}).strip(),
    ]
    for row in raw["run"]:
        if row["name"] not in chosen:
            continue
        best = chosen[row["name"]]
        changes = trials.changes[row["name"]][best.number - 1]
        said = f"trial {best.number}, validation {100 * (best.score or 0.0):.2f}"
        comments = {f"run.{setting}": said for setting in changes}
        values = _moved(plain_row(row, changes), task, path.parent, out)
        made = to_toml({"run": values}, comments)
        lines += ["", *([] if changes else [f"# as written: {said}"])]
        lines += [made.strip().replace("[run]", "[[run]]", 1)]
    return "\n".join(lines) + "\n"


def _moved(values: Values, base: Values, folder: Path, out: Path) -> Values:
    """Values whose relative paths, which begin at the study's folder, begin at another one.

    A name that leads nowhere from there is one below AUTOFEDAVG_DATA, and stays. The task's name
    may be in the `base` alone.
    """
    task = values.get("task", {})
    name = task.get("name", base.get("name"))
    paths = TASKS[name].paths if name in TASKS else ()
    moved = {
        name: os.path.relpath(folder / task[name], out)
        for name in paths
        if task.get(name) and (folder / task[name]).exists() and not Path(task[name]).is_absolute()
    }
    return {**values, "task": {**task, **moved}} if moved else values
