"""A study: one TOML file is one table, `[base]` and one `[[run]]` per row.

Unknown keys are refused with a suggestion; every default carries its origin. Values only, never
expressions; the only composition is base, row and `--set key=value`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autofedavg.errors import ConfigError, did_you_mean
from autofedavg.experiment.validation import (
    Values,
    merge,
    override,
    pick,
    refuse_unknown,
    table,
    validate,
)
from autofedavg.method import Method
from autofedavg.methods import METHODS
from autofedavg.settings import Settings, origins, setting
from autofedavg.task import Progress, Task
from autofedavg.tasks import TASKS
from autofedavg.workbench import Training

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # keys that TOML takes without quotes


class Rounds(Settings):
    """What a row sets besides its task, its training and its method."""

    rounds: int = setting(300, origin="paper Sec. 4.2.1", help="T, communication rounds", ge=1)
    quorum: int = setting(
        0,
        origin="ours",
        help="clients that must answer a call; 0 means all, as in Algorithm 1",
        ge=0,
    )


class RunConfig:
    """One resolved row of a study.

    Attributes:
        name: the row's name, also its folder's.
        label: the row's name in tables.
        general: rounds and quorum.
        task, training, method: their settings.
    """

    def __init__(
        self,
        name: str,
        label: str,
        general: Rounds,
        task: Task,
        training: Training,
        method: Method,
    ) -> None:
        self.name, self.label, self.general = name, label, general
        self.task, self.training, self.method = task, training, method
        method.check(len(task.site_names()))
        if method.learns_on == "holdout" and not getattr(task, "holdout", 0):
            raise ConfigError(
                "method.learn_on is 'holdout', but task.holdout sets no case aside",
                where=f"run {name}",
                remedy="set task.holdout, for every row that is to be compared",
            )
        if general.quorum > len(task.site_names()):
            raise ConfigError(
                f"quorum is {general.quorum}, and there are {len(task.site_names())} sites",
                where=f"run {name}",
                remedy="use 0 for all",
            )

    @property
    def T(self) -> int:
        return self.general.rounds

    def origins(self) -> list[tuple[str, Any, str, str]]:
        """(path, value, origin, help) of every setting."""
        return [
            *origins(self.general),
            *origins(self.task, "task."),
            *origins(self.training, "training."),
            *origins(self.method, "method."),
        ]

    def resolved(self, progress: Progress | None = None) -> RunConfig:
        """The row with what its task leaves to the data worked out."""
        task = self.task.resolved(progress)
        return RunConfig(self.name, self.label, self.general, task, self.training, self.method)

    def values(self, *, given_only: bool = False) -> Values:
        """Every value, defaults written out; or only what the study itself gave."""
        return {
            "name": self.name,
            "label": self.label,
            **_plain(self.general, given_only),
            "task": _plain(self.task, given_only),
            "training": _plain(self.training, given_only),
            "method": _plain(self.method, given_only),
        }

    def to_toml(self) -> str:
        """The resolved row as TOML, each value with its origin as a comment."""
        said = {path: origin for path, _, origin, _ in self.origins()}
        return to_toml(self.values(), said)


class Study:
    """A table: rows that share a base, seeds, and the row the others are tested against."""

    def __init__(
        self, name: str, title: str, seeds: Sequence[int], baseline: str, runs: Sequence[RunConfig]
    ) -> None:
        self.name, self.title, self.baseline = name, title, baseline
        self.seeds, self.runs = tuple(seeds), tuple(runs)


def read_study(
    path: Path | str,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
) -> Study:
    """Reads and checks a study file.

    Args:
        path: the TOML file.
        overrides: "key=value" settings for every row that is read, as given to `--set`.
        seeds: seeds to use instead of the file's.
        only: names of the rows to read; all when empty.

    Raises:
        ConfigError: says what is wrong, in which row, and what to do.
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "no such study file", where=str(path), remedy="name a TOML file, e.g. configs/demo.toml"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"not a TOML file: {error}", where=str(path)) from error
    return parse_study(raw, path.name, overrides, seeds, only, path.parent)


def parse_study(
    raw: Values,
    where: str,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    folder: Path | None = None,
) -> Study:
    """`read_study` for values that are already in memory; their paths begin at `folder`."""
    refuse_unknown(raw, {"study", "base", "run"}, where)
    head = table(raw, "study", where)
    refuse_unknown(head, {"name", "title", "seeds", "baseline"}, f"{where}: study")
    name = head.get("name", Path(where).stem)
    _check_name(name, f"{where}: study.name")
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
        _row(base, row, number, where, overrides, folder or Path())
        for number, (row, row_name) in enumerate(zip(rows, names, strict=True), 1)
        if not only or row_name in only
    ]
    for row_name in names:
        if names.count(row_name) > 1:
            raise ConfigError(f"two rows are called {row_name!r}", where=where)
    used = list(head.get("seeds", [0]) if seeds is None else seeds)
    if not used or any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in used):
        raise ConfigError(f"seeds must be integers from 0, not {used}", where=f"{where}: study")
    if len(set(used)) != len(used):
        raise ConfigError(f"a seed is listed twice: {used}", where=f"{where}: study")
    baseline = head.get("baseline", "fedavg" if "fedavg" in names else "")
    if baseline and baseline not in names:
        raise ConfigError(
            f"baseline {baseline!r} is not a row",
            where=f"{where}: study",
            remedy=did_you_mean(baseline, names),
        )
    return Study(name, str(head.get("title", name)), used, baseline, runs)


def parse_run(values: Values, where: str) -> RunConfig:
    """One resolved row, as kept in a run folder's config.toml."""
    return _run(values, where)


def to_toml(values: Values, comments: Mapping[str, str] | None = None) -> str:
    """Nested values as TOML; `comments` maps dotted paths to what is said behind the value."""
    return "\n".join(_toml(values, "", comments or {})) + "\n"


def _row(
    base: Values, row: Any, number: int, where: str, overrides: Sequence[str], folder: Path
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
    return _run(values, place)


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
    _check_name(name, f"{place}: name")
    label = values.pop("label", name)
    if not isinstance(label, str):
        raise ConfigError(f"label must be text, not {label!r}", where=place)
    parts = {part: values.pop(part, {}) for part in ("task", "training", "method")}
    for part, content in parts.items():
        if not isinstance(content, dict):
            raise ConfigError("must be a table", where=f"{place}, {part}")
    general = validate(Rounds, values, place, "")
    task = validate(pick(TASKS, parts["task"], place, "task"), parts["task"], place, "task")
    training = validate(Training, parts["training"], place, "training")
    chosen = pick(METHODS, parts["method"], place, "method")
    method = validate(chosen, parts["method"], place, "method")
    try:
        return RunConfig(name, label, general, task, training, method)
    except ConfigError as error:
        raise ConfigError(
            error.what, where=f"{place}, {error.where}", remedy=error.remedy
        ) from error


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a folder's name",
            where=where,
            remedy="use letters, digits, '.', '_' and '-'; put the pretty name into label",
        )


def _plain(settings: Settings, given_only: bool) -> Values:
    values: Values = json.loads(settings.model_dump_json(exclude_unset=given_only))
    return values


def _toml(values: Values, table: str, said: Mapping[str, str]) -> Iterator[str]:
    """TOML lines of nested values; JSON's scalars and arrays are also TOML's."""
    for key, value in values.items():
        if not isinstance(value, dict):
            quoted = key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
            text = f"{quoted} = {json.dumps(value, ensure_ascii=False)}"
            origin = said.get(f"{table}{key}")
            yield f"{text}  # {origin}" if origin else text
    for key, value in values.items():
        if isinstance(value, dict):
            yield from ("", f"[{table}{key}]")
            yield from _toml(value, f"{table}{key}.", said)
