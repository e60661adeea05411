"""A study: one TOML file is one table, `[base]` and one `[[run]]` per row.

Unknown keys are refused with a suggestion; every default carries its origin. Values only, never
expressions; the only composition is base, row and `--set key=value`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.errors import ConfigError, did_you_mean
from autofedavg.core.privacy import Privacy
from autofedavg.core.trainer import Training
from autofedavg.experiment.plain_values import filled
from autofedavg.experiment.rows import Rounds, RunConfig
from autofedavg.experiment.validation import (
    PARTS,
    Values,
    merge,
    override,
    pick,
    refuse_unknown,
    table,
    validate,
)
from autofedavg.federation.settings import Exchange
from autofedavg.methods import METHODS
from autofedavg.tasks import TASKS
from autofedavg.tasks.base import Task

KEYS = {"study", "base", "run", "tune"}  # the parts of a study
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Study:
    """A table: rows that share a base, seeds, folds, and the row the others are tested against.

    Attributes:
        folds: the folds each row is run on, pooled in its numbers; empty without cross-validation.
        rows: the names of all rows, in the order of a table; those that are not read among them.
    """

    name: str
    title: str
    seeds: tuple[int, ...]
    baseline: str
    runs: tuple[RunConfig, ...]
    folds: tuple[int, ...]
    rows: tuple[str, ...]

    def jobs(self) -> list[tuple[RunConfig, int | None, int]]:
        """(row, fold, seed) of every run; fold by fold, so that its data is read once."""
        return [
            (run if fold is None else run.on_fold(fold, self.folds), fold, seed)
            for fold in (self.folds or (None,))
            for run in self.runs
            for seed in self.seeds
        ]


def parse_study(
    raw: Values,
    where: str,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    folder: Path | None = None,
    folds: Sequence[int] | None = None,
    sites: Sequence[str] | None = None,
) -> Study:
    """Checks a study's values, as `read_study` does; their paths begin at `folder`."""
    refuse_unknown(raw, KEYS, where)
    head, base = (table(raw, part, where) for part in ("study", "base"))
    refuse_unknown(head, {"name", "title", "seeds", "folds", "baseline"}, f"{where}: study")
    name = head.get("name", Path(where).stem)
    check_name(name, f"{where}: study.name")
    _refuse_parts(overrides)
    rows = raw.get("run", [])
    if not isinstance(rows, list) or not rows:
        raise ConfigError("a study needs at least one [[run]]", where=where)
    names = [str(row.get("name")) if isinstance(row, dict) else "" for row in rows]
    for row_name in only:
        if row_name not in names:
            raise ConfigError(
                f"{row_name!r} is not a row", where=where, remedy=did_you_mean(row_name, names)
            )
    runs = [
        _row(base, row, f"{where}: run {number}", overrides, folder or Path(), sites)
        for number, (row, row_name) in enumerate(zip(rows, names, strict=True), 1)
        if not only or row_name in only
    ]
    for row_name in names:
        if names.count(row_name) > 1:
            raise ConfigError(f"two rows are called {row_name!r}", where=where)
    used = _numbers("seed", head.get("seeds", [0]) if seeds is None else seeds, where, least=1)
    tested = _numbers("fold", head.get("folds", []) if folds is None else folds, where)
    for run in runs if tested else ():
        _refuse_folds(run, where, asked=folds is not None)
    baseline = head.get("baseline", "fedavg" if "fedavg" in names else "")
    if baseline and baseline not in names:
        raise ConfigError(
            f"baseline {baseline!r} is not a row",
            where=f"{where}: study",
            remedy=did_you_mean(baseline, names),
        )
    title = str(head.get("title", name))
    return Study(name, title, used, baseline, tuple(runs), tested, tuple(names))


def _refuse_folds(run: RunConfig, where: str, *, asked: bool) -> None:
    """Refuses folds, of the study or `asked` for, on a task that has none or has one chosen."""
    place, given, leave = f"{where}: study", "folds are listed", "take study.folds out"
    if asked:
        place, given, leave = where, "--folds is given", "leave --folds out"
    if "fold" in run.task.model_fields_set:
        raise ConfigError(
            f"task.fold is set, and {given}", where=place, remedy=f"{leave}, or task.fold"
        )
    if "fold" not in type(run.task).model_fields:
        raise ConfigError(
            f"{given}, and the task of row {run.name!r} has none",
            where=place,
            remedy=f"{leave}, or use a data list with folds",
        )


def parse_run(values: Values, where: str) -> RunConfig:
    """One resolved row, as kept in a run folder's config.toml; its data need not be there."""
    values = dict(values)
    name = values.pop("name", None)
    if name is None:
        raise ConfigError("a run needs a name", where=where)
    check_name(name, f"{where}: name")
    label = values.pop("label", name)
    if not isinstance(label, str):
        raise ConfigError(f"label must be text, not {label!r}", where=where)
    parts = {part: values.pop(part, {}) for part in PARTS}
    for part, content in parts.items():
        if not isinstance(content, dict):
            raise ConfigError("must be a table", where=f"{where}, {part}")
    tables = {"": values, **parts}
    made = (validate(_kind(part, t, where), t, where, part) for part, t in tables.items())
    return RunConfig(name, label, *made)


def read_task(
    name: str, listing: Path | None = None, root: str = "", overrides: Sequence[str] = ()
) -> Task:
    """A task on its own, outside a study: what `autofedavg data` is about.

    Args:
        name: the task's.
        listing: the data list, for the task `datalist` and for it alone.
        root: where the data is; the task's default when empty.
        overrides: "key=value" settings of the task; "task.key=value" means the same.

    Raises:
        ConfigError: there is no such task, or a setting is wrong.
    """
    place = f"data {name}"
    if name not in TASKS:
        raise ConfigError(
            f"{name!r} is neither a task nor `inspect`",
            where="data",
            remedy=did_you_mean(name, [*TASKS, "inspect"]),
        )
    if (listing is None) == (name == "datalist"):
        said, remedy = "it takes no data list", f"leave the list out: autofedavg data {name}"
        if listing is None:
            said = "it needs a data list"
            remedy = "e.g. autofedavg data datalist LIST, or autofedavg data inspect LIST"
        raise ConfigError(said, where=place, remedy=remedy)
    values: Values = {"name": name}
    values |= {"datalist": str(listing.absolute())} if listing else {}
    values |= {"root": root} if root else {}
    for text in overrides:
        override(values, text.removeprefix("task."))
    task: Task = validate(TASKS[name], values, place, "task")
    return task


def completed(values: Values) -> Values:
    """A resolved row with the settings that are newer than its run folder, at their defaults.

    A new setting must therefore default to what was done before it came. A task or a method that
    this version does not know stays as it is.
    """
    made = filled(Rounds, values)
    for part in PARTS:
        try:
            made[part] = filled(_kind(part, values.get(part, {}), ""), values.get(part, {}))
        except ConfigError:
            made[part] = values[part]
    return made


def _kind(part: str, values: Values, place: str) -> Any:
    """The class of the settings in a table of a row, or in its head where `part` is empty."""
    fixed = {"": Rounds, "training": Training, "exchange": Exchange, "privacy": Privacy}
    return fixed.get(part) or pick(TASKS if part == "task" else METHODS, values, place, part)


def _row(
    base: Values,
    row: Any,
    place: str,
    overrides: Sequence[str],
    folder: Path,
    sites: Sequence[str] | None,
) -> RunConfig:
    """A row of a study: its values over those of the base, and those of `--set` over both."""
    if not isinstance(row, dict):
        raise ConfigError("a run must be a table", where=place, remedy="write [[run]] above it")
    if isinstance(row.get("name"), str):
        place = f"{place} ({row['name']})"
    values = merge(base, {key: value for key, value in row.items() if key != "tune"})
    _anchor(values, folder)
    for text in overrides:
        override(values, text)
    _anchor(values, Path())  # those given on the command line begin where it was given
    run = parse_run(values, place)
    try:
        run.check(sites)
    except ConfigError as error:
        where = place if error.where == f"run {run.name}" else f"{place}, {error.where}"
        raise ConfigError(error.what, where=where, remedy=error.remedy) from error
    return run


def _refuse_parts(overrides: Sequence[str]) -> None:
    """Refuses a `--set` of another part of a study than its rows."""
    for text in overrides:
        part = text.partition("=")[0].partition(".")[0].strip()
        if part in KEYS:
            rows = "name the row's setting alone, e.g. --set rounds=5, or edit the study"
            raise ConfigError(
                f"--set cannot change [{part}]",
                remedy=rows if part in ("base", "run") else "edit the study",
            )


def _anchor(values: Values, folder: Path) -> None:
    """Paths that a study writes begin at the study's folder, wherever it is run from."""
    task = values.get("task")
    if isinstance(task, dict) and str(task.get("name")) in TASKS:
        for name in TASKS[str(task["name"])].paths:
            if isinstance(task.get(name), str) and task[name]:
                task[name] = str((folder / task[name]).absolute())


def _numbers(what: str, given: Any, where: str, least: int = 0) -> tuple[int, ...]:
    """Seeds or folds: integers from 0, each once."""
    listed = isinstance(given, Sequence) and len(given) >= least
    if not listed or any(type(number) is not int or number < 0 for number in given):
        raise ConfigError(f"{what}s must be integers from 0, not {given}", where=f"{where}: study")
    if len(set(given)) != len(given):
        raise ConfigError(f"a {what} is listed twice: {list(given)}", where=f"{where}: study")
    return tuple(given)


def check_name(name: Any, where: str) -> None:
    """Refuses what cannot be a folder's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a folder's name",
            where=where,
            remedy="use letters, digits, '.', '_' and '-'; a study's title and a row's label are "
            "free",
        )
