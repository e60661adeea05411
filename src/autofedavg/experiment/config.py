"""A study: one TOML file is one table, `[base]` and one `[[run]]` per row.

Unknown keys are refused with a suggestion; every default carries its origin. Values only, never
expressions; the only composition is base, row and `--set key=value`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autofedavg.core.errors import ConfigError, did_you_mean
from autofedavg.core.trainer import Training
from autofedavg.experiment.rows import Rounds, RunConfig, filled
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

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Study:
    """A table: rows that share a base, seeds, folds, and the row the others are tested against.

    Attributes:
        folds: the folds each row is run on, pooled in its numbers; empty without cross-validation.
        rows: the names of all rows, in the order of a table; those that are not read among them.
    """

    def __init__(
        self,
        name: str,
        title: str,
        seeds: Sequence[int],
        baseline: str,
        runs: Sequence[RunConfig],
        folds: Sequence[int] = (),
        rows: Sequence[str] = (),
    ) -> None:
        self.name, self.title, self.baseline = name, title, baseline
        self.rows = tuple(rows) or tuple(run.name for run in runs)
        self.seeds, self.runs, self.folds = tuple(seeds), tuple(runs), tuple(folds)

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
    refuse_unknown(raw, {"study", "base", "run"}, where)
    head = table(raw, "study", where)
    refuse_unknown(head, {"name", "title", "seeds", "folds", "baseline"}, f"{where}: study")
    name = head.get("name", Path(where).stem)
    check_name(name, f"{where}: study.name")
    rows = raw.get("run", [])
    if not isinstance(rows, list) or not rows:
        raise ConfigError("a study needs at least one [[run]]", where=where)
    base = table(raw, "base", where)
    names = [str(row.get("name")) if isinstance(row, dict) else "" for row in rows]
    for row_name in only:
        if row_name not in names:
            raise ConfigError(
                f"{row_name!r} is not a row", where=where, remedy=did_you_mean(row_name, names)
            )
    runs = [
        _row(base, row, number, where, overrides, folder or Path(), sites)
        for number, (row, row_name) in enumerate(zip(rows, names, strict=True), 1)
        if not only or row_name in only
    ]
    for row_name in names:
        if names.count(row_name) > 1:
            raise ConfigError(f"two rows are called {row_name!r}", where=where)
    used = _numbers("seed", head.get("seeds", [0]) if seeds is None else seeds, where)
    if not used:
        raise ConfigError("seeds must be integers from 0, not []", where=f"{where}: study")
    tested = _numbers("fold", head.get("folds", []) if folds is None else folds, where)
    unfit = next((r for r in runs if tested and "fold" not in type(r.task).model_fields), None)
    if tested and any("fold" in run.task.model_fields_set for run in runs):
        raise ConfigError(
            "task.fold is set, and so are the folds of the study",
            where=f"{where}: study",
            remedy="choose one with --folds, or take study.folds out",
        )
    if unfit:
        raise ConfigError(
            f"folds are listed, and the task of row {unfit.name!r} has none",
            where=f"{where}: study",
            remedy="take study.folds out, or use a data list with folds",
        )
    baseline = head.get("baseline", "fedavg" if "fedavg" in names else "")
    if baseline and baseline not in names:
        raise ConfigError(
            f"baseline {baseline!r} is not a row",
            where=f"{where}: study",
            remedy=did_you_mean(baseline, names),
        )
    return Study(name, str(head.get("title", name)), used, baseline, runs, tested, names)


def parse_run(values: Values, where: str) -> RunConfig:
    """One resolved row, as kept in a run folder's config.toml; its data need not be there."""
    return _run(values, where)


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
    fixed = {"": Rounds, "training": Training, "exchange": Exchange}
    return fixed.get(part) or pick(TASKS if part == "task" else METHODS, values, place, part)


def _row(
    base: Values,
    row: Any,
    number: int,
    where: str,
    overrides: Sequence[str],
    folder: Path,
    sites: Sequence[str] | None,
) -> RunConfig:
    place = f"{where}: run {number}"
    if not isinstance(row, dict):
        raise ConfigError("a run must be a table", where=place, remedy="write [[run]] above it")
    values = merge(base, row)
    if isinstance(row.get("name"), str):
        place = f"{place} ({row['name']})"
    _anchor(values, folder)
    for text in overrides:
        override(values, text)
    _anchor(values, Path())  # those given on the command line begin where it was given
    run = _run(values, place)
    try:
        run.check(sites)
    except ConfigError as error:
        raise ConfigError(
            error.what, where=f"{place}, {error.where}", remedy=error.remedy
        ) from error
    return run


def _anchor(values: Values, folder: Path) -> None:
    """Paths that a study writes begin at the study's folder, wherever it is run from."""
    task = values.get("task")
    if isinstance(task, dict) and str(task.get("name")) in TASKS:
        for name in TASKS[str(task["name"])].paths:
            if isinstance(task.get(name), str) and task[name]:
                task[name] = str((folder / task[name]).absolute())


def _run(values: Values, place: str) -> RunConfig:
    values = dict(values)
    name = values.pop("name", None)
    if name is None:
        raise ConfigError("a run needs a name", where=place)
    check_name(name, f"{place}: name")
    label = values.pop("label", name)
    if not isinstance(label, str):
        raise ConfigError(f"label must be text, not {label!r}", where=place)
    parts = {part: values.pop(part, {}) for part in PARTS}
    for part, content in parts.items():
        if not isinstance(content, dict):
            raise ConfigError("must be a table", where=f"{place}, {part}")
    tables = {"": values, **parts}
    made = (validate(_kind(part, t, place), t, place, part) for part, t in tables.items())
    return RunConfig(name, label, *made)


def _numbers(what: str, given: Any, where: str) -> list[int]:
    """Seeds or folds: integers from 0, each once."""
    if not isinstance(given, Sequence) or any(
        not isinstance(number, int) or isinstance(number, bool) or number < 0 for number in given
    ):
        raise ConfigError(f"{what}s must be integers from 0, not {given}", where=f"{where}: study")
    if len(set(given)) != len(given):
        raise ConfigError(f"a {what} is listed twice: {list(given)}", where=f"{where}: study")
    return list(given)


def check_name(name: Any, where: str) -> None:
    """Refuses what cannot be a folder's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a folder's name",
            where=where,
            remedy="use letters, digits, '.', '_' and '-'; put the pretty name into label",
        )
