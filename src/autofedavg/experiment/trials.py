"""The trials of a study: every row with its own settings first, then with others of its ranges.

A study says in `[tune]` how many trials each row has, and in a row's `tune` which values to try.
All rows have equally many (decision 70). Trials are a study of their own, and are not tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.settings import Settings, setting
from autofedavg.experiment.config import parse_run
from autofedavg.experiment.trial_names import trial_label, trial_name
from autofedavg.experiment.validation import Values, merge, table, validate

TESTING = ("test", "test_every", "test_local", "ceiling", "keep_models")  # not for trials
TUNABLE = ("method", "training")  # what else differs would be other data, or another comparison
MOST = 1000  # settings of one row's ranges

Changes = dict[str, Any]  # dotted setting -> value


class Tune(Settings):
    """The table `[tune]` of a study."""

    trials: int = setting(
        4, origin="ours: decision 70", help="settings tried for every row, its own first", ge=1
    )
    seeds: tuple[int, ...] = setting(
        (100,), origin="ours: decision 70", help="seeds of the trials, none of the study's own"
    )
    folds: tuple[int, ...] = setting(
        (),
        origin="ours: decision 70",
        help="folds of the trials, in a study with folds; its first one when empty",
    )
    common: dict[str, list[Any]] = setting(
        {},
        origin="ours: decision 70",
        help="values that any row may try, where its own ranges have fewer settings than trials",
    )


@dataclass(frozen=True)
class Trials:
    """The trials of a study.

    Attributes:
        values: the study of all trials, as a study file would have it.
        changes: by row, what each of its trials changes; nothing in the first.
    """

    values: Values
    changes: Mapping[str, Sequence[Changes]]


def trials_of(raw: Values, where: str) -> Trials:
    """The trials that a study's values ask for.

    Raises:
        ConfigError: a range names no setting, holds a value that is refused, or is too small.
    """
    tune: Tune = validate(Tune, table(raw, "tune", where), where, "tune")
    head, base = table(raw, "study", where), table(raw, "base", where)
    own = [seed for seed in tune.seeds if seed in head.get("seeds", [0])]
    if own or not tune.seeds:
        raise ConfigError(
            f"seed {own[0]} is also one of the study's" if own else "tune.seeds is empty",
            where=f"{where}: tune",
            remedy="choose other seeds for the trials, such as 100",
        )
    name = head.get("name", where.removesuffix(".toml"))
    baseline = head.get("baseline", "fedavg")
    made: Values = {
        "study": {
            "name": f"{name}-trials",
            "title": f"{head.get('title', name)}: trials",
            "seeds": list(tune.seeds),
        },
        "base": {**_untested(base), "test": False},
        "run": [],
    }
    if folds := head.get("folds"):
        made["study"]["folds"] = list(tune.folds) or folds[:1]
    elif tune.folds:
        raise ConfigError(
            "tune.folds is set, and the study has no folds",
            where=f"{where}: tune",
            remedy="take it out",
        )
    changes = {}
    for number, row in enumerate(raw["run"], 1):
        place = f"{where}: run {number} ({row['name']})"
        changes[row["name"]] = _chosen(base, row, tune, place)
        for trial, changed in enumerate(changes[row["name"]], 1):
            values = _untested(plain_row(row, changed))
            label = trial_label(row.get("label", row["name"]), trial, changed)
            made["run"].append({**values, "name": trial_name(row["name"], trial), "label": label})
    if baseline in changes:
        made["study"]["baseline"] = trial_name(baseline, 1)
    return Trials(made, changes)


def plain_row(row: Values, changes: Changes) -> Values:
    """A row without its ranges, and with other values of some settings."""
    values = {key: value for key, value in row.items() if key != "tune"}
    for path, value in changes.items():
        part, name = path.split(".", 1)
        values = merge(values, {part: _nested(name, value)})
    return values


def _nested(name: str, value: Any) -> Values:
    first, dot, rest = name.partition(".")
    return {first: _nested(rest, value) if dot else value}


def _untested(values: Values) -> Values:
    return {key: value for key, value in values.items() if key not in TESTING}


def _chosen(base: Values, row: Values, tune: Tune, place: str) -> list[Changes]:
    """What a row's trials change: nothing, then its own ranges, then what all have in common."""
    own = _grid(_ranges(row.get("tune", {}), f"{place}, tune"), f"{place}, tune")
    common = _grid(_ranges(tune.common, f"{place}, tune.common"), f"{place}, tune.common")
    known: dict[str, Changes] = {}

    def add(changes: Changes) -> None:
        run = parse_run(merge(base, plain_row(row, changes)), f"{place}, tune")
        found = {part: run.values()[part] for part in TUNABLE}
        known.setdefault(json.dumps(found), changes)

    add({})
    for changes in own:  # all of them, so that a refused value is named, drawn or not
        add(changes)
    if len(known) > tune.trials:
        first, *others = known.values()
        draws = Seeds(tune.seeds[0]).generator(str(row["name"]), Purpose.TRIALS)
        order = torch.randperm(len(others), generator=draws).tolist()
        return [first, *(others[index] for index in sorted(order[: tune.trials - 1]))]
    for mixed in (*common, *({**other, **mine} for other in common for mine in own)):
        if len(known) < tune.trials:
            add(mixed)
    if len(known) < tune.trials:
        raise ConfigError(
            f"there are {len(known)} different settings for {tune.trials} trials",
            where=f"{place}, tune",
            remedy="add values to this row's tune or to tune.common, or lower tune.trials",
        )
    return list(known.values())


def _ranges(given: Any, place: str) -> dict[str, list[Any]]:
    """Dotted setting -> its values; a name without a dot is a setting of the method."""
    if not isinstance(given, dict):
        raise ConfigError("must be a table of lists", where=place, remedy="e.g. { mu = [0.1, 1] }")
    found = {}
    for name, values in given.items():
        path = name if "." in name else f"method.{name}"
        if path.split(".")[0] not in TUNABLE or path == "method.name":
            raise ConfigError(
                f"{name} cannot be tuned: trials would differ in more than the row's settings",
                where=place,
                remedy="name settings of the method, or training.NAME in quotes",
            )
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"{name} must be a list of values, not {values!r}",
                where=place,
                remedy=f"e.g. {name} = [{values!r}]" if values else "list at least one value",
            )
        found[path] = values
    return found


def _grid(ranges: Mapping[str, Sequence[Any]], place: str) -> Iterator[Changes] | list[Changes]:
    """Every combination of the values."""
    size = 1
    for values in ranges.values():
        size *= len(values)
    if size > MOST:
        raise ConfigError(
            f"{size} combinations of values, and at most {MOST} are allowed",
            where=place,
            remedy="take settings or values out",
        )
    return [dict(zip(ranges, each, strict=True)) for each in product(*ranges.values()) if ranges]
