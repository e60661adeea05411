"""A study's files: the TOML file that it is read from, and study.json, which lists its runs.

Studies that come with the package go by name, your own by path. A study folder has the study.json.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from autofedavg.core.errors import ConfigError, RunError, did_you_mean
from autofedavg.experiment.config import Study, parse_run, parse_study
from autofedavg.experiment.files import make_folder
from autofedavg.experiment.folder import STUDY, Ledger, in_order, read_json, run_path
from autofedavg.experiment.folder_writer import disk_errors, write_atomically
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.trials import Trials, trials_of
from autofedavg.experiment.validation import Values, merge, override
from autofedavg.studies.machine import Machine
from autofedavg.tasks import TASKS

BUILTIN = Path(__file__).with_name("builtin")
RECORDED = ("engine", "device", "threads")  # of the machine that a run was planned for


def builtin_studies() -> dict[str, str]:
    """Name and title of every study that comes with the package."""
    return {name: _content(study_path(name))["study"]["title"] for name in _names()}


def study_path(study: Path | str) -> Path:
    """The study's file: a path (with a slash or .toml) is a file, a bare name a built-in study.

    Raises:
        ConfigError: there is no such file, or no built-in study of that name.
    """
    path, known = Path(study), _names()
    if path.suffix == ".toml" or path.name != str(study):
        if path.exists():
            return path
        remedy = "name a TOML file, or one of `autofedavg list studies`"
        if path.stem in known:
            remedy = f"a study of that name comes with the package: {path.stem}"
        raise ConfigError("no such study file", where=str(study), remedy=remedy)
    if path.name in known:
        return BUILTIN / f"{path.name}.toml"
    remedy = f"write ./{path}" if path.exists() else did_you_mean(path.name, known)
    raise ConfigError(f"{str(study)!r} is not a built-in study", remedy=remedy)


def read_study(
    study: Path | str,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    folds: Sequence[int] | None = None,
    sites: Sequence[str] | None = None,
) -> Study:
    """Reads and checks a study.

    Args:
        study: the name of a built-in study, or the path of a TOML file (with a slash or .toml).
        overrides: "key=value" settings for every row that is read, as for `--set`.
        seeds: seeds to use instead of the study's.
        only: names of the rows to read; all when empty.
        folds: folds to use instead of the study's.
        sites: names of the sites, where the data that tells them is on other machines.

    Raises:
        ConfigError: says what is wrong, in which row, and what to do.
    """
    path = study_path(study)
    raw = study_values(path)
    read = parse_study(raw, path.name, overrides, seeds, only, path.parent, folds, sites)
    if "tune" in raw or any("tune" in row for row in raw["run"]):
        trials_of(raw, path.name)  # so that `check` and `run` refuse wrong ranges, too
    return read


def read_trials(
    study: Path | str, only: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[Study, Trials]:
    """Reads a study's trials, and checks all of them.

    Args:
        study: as for `read_study`.
        only: names of the rows to try; all when empty.
        overrides: as for `read_study`; the ranges are tried from there.

    Raises:
        ConfigError: the study is wrong, or its ranges are.
    """
    path = study_path(study)
    read = read_study(path, overrides, only=only)
    raw = changed(study_values(path), overrides)
    rows = {run.name for run in read.runs}
    trials = trials_of(
        {**raw, "run": [row for row in raw["run"] if row["name"] in rows]}, path.name
    )
    return parse_study(trials.values, path.name, folder=path.parent), trials


def study_values(path: Path) -> Values:
    """A study file's content, unchecked; with the rows and ranges of the study it names for them.

    Raises:
        ConfigError: it cannot be read, or names no study that has rows of its own.
    """
    values = _content(path)
    head = values.get("study")
    if not isinstance(head, dict) or "rows" not in head:
        return values
    where, others = f"{path.name}: study.rows", _content(_rows_of(head["rows"], path.name))
    if "rows" in others["study"]:
        raise ConfigError(
            f"{head['rows']} takes its rows from another study",
            where=where,
            remedy=f"name that one: {others['study']['rows']}",
        )
    own = values.get("run", [])
    if not isinstance(own, list):
        raise ConfigError("the study's own rows must be [[run]] tables", where=path.name)
    trials = {key: value for key, value in others.get("tune", {}).items() if key != "folds"}
    return {
        **({"tune": trials} if trials else {}),  # its folds are those of its own data
        **values,
        "study": {key: value for key, value in head.items() if key != "rows"},
        "run": [*others["run"], *own],
    }


def changed(raw: Values, overrides: Sequence[str]) -> Values:
    """A checked study's values, each row with those of `--set`; their paths begin where we are."""
    base, rows = raw.get("base", {}), [merge(row, {}) for row in raw["run"]]
    for text in overrides:
        key = text.partition("=")[0].strip()
        for row in rows:
            override(row, text)
            task = merge(base, row).get("task", {})
            _, _, name = key.partition("task.")
            if name in (TASKS[task["name"]].paths if task.get("name") in TASKS else ()):
                row["task"][name] = str(Path(task[name]).absolute())
    return {**raw, "run": rows}


def _rows_of(name: object, where: str) -> Path:
    """The file of a built-in study: the paths of its rows begin nowhere else."""
    if isinstance(name, str) and name in _names():
        return BUILTIN / f"{name}.toml"
    raise ConfigError(
        f"{name!r} is not a built-in study",
        where=f"{where}: study.rows",
        remedy=did_you_mean(str(name), _names()),
    )


def _content(path: Path) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"not a TOML file: {error}", where=str(path)) from error


def _names() -> list[str]:
    return sorted(path.stem for path in BUILTIN.glob("*.toml"))


class PlannedRun(NamedTuple):
    """A run that the study asks for; `machine` is where to compute it if it has not started."""

    folder: Path
    config: RunConfig
    seed: int
    machine: Machine

    @property
    def started(self) -> bool:
        return (self.folder / "config.toml").exists()

    @property
    def finished(self) -> bool:
        return Ledger(self.folder).finished


def planned_runs(home: Path, asked: Machine) -> list[PlannedRun]:
    """All runs of a study folder; what `asked` leaves open is as recorded in study.json."""
    found = []
    for row in read_json(home / STUDY)["runs"]:
        config = parse_run(row["config"], str(home))
        folds = sorted({fold for fold, _ in row["jobs"] if fold is not None})
        machines = row.get("machines") or [{}] * len(row["jobs"])  # earlier versions recorded none
        for (fold, seed), recorded in zip(row["jobs"], machines, strict=True):
            kept = {key: getattr(asked, key) or recorded.get(key) for key in RECORDED}
            found.append(
                PlannedRun(
                    run_path(home, config.name, seed, fold),
                    config if fold is None else config.on_fold(fold, folds),
                    seed,
                    replace(asked, **kept),
                )
            )
    return found


def write_study_json(home: Path, study: Study, machine: Machine) -> None:
    """Adds the study's rows, seeds and folds to study.json; those of earlier calls stay.

    Raises:
        RunError: the folder has a row of that name with other settings.
    """
    path = home / STUDY
    rows = {row["config"]["name"]: row for row in read_json(path)["runs"]} if path.exists() else {}
    for config in study.runs:
        given = config.values(given_only=True)
        row = rows.setdefault(config.name, {"jobs": [], "config": given})
        if row["config"] != given:
            raise RunError(
                f"row {config.name!r} is in this study folder with other settings",
                where=str(home),
                remedy="give the row another name, or choose another --out",
            )
        jobs = [[fold, seed] for fold in study.folds or (None,) for seed in study.seeds]
        if any((job[0] is None) != (jobs[0][0] is None) for job in row["jobs"]):
            raise RunError(
                f"row {config.name!r} is in this study folder "
                + ("without folds" if study.folds else "with folds"),
                where=str(home),
                remedy="choose another --out: the two cannot be pooled",
            )
        machines = dict(zip(map(tuple, row["jobs"]), row.get("machines", []), strict=False))
        machines |= {
            (fold, seed): {key: getattr(machine, key) for key in RECORDED} for fold, seed in jobs
        }
        row["jobs"] += [job for job in jobs if job not in row["jobs"]]
        row["machines"] = [machines.get((fold, seed), {}) for fold, seed in row["jobs"]]
    content = {
        "name": study.name,
        "title": study.title,
        "baseline": study.baseline,
        "rows": list(study.rows),
        "runs": in_order(rows, study.rows),
    }
    with disk_errors(home):
        make_folder(home)
        write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
