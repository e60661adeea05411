"""The trials of a study: every row with its own settings first, then with others of its ranges.

A study says in `[tune]` how many trials each row has, and in a row's `tune` which values to try.
All rows have equally many (decision 70). Trials are a study of their own, and are not tested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod
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
    if "tune" not in raw and not any("tune" in row for row in raw["run"]):
        raise ConfigError(
            "this study does not say what to try: neither it nor a row has a table `tune`",
            where=where,
            remedy="add one, as docs/how-to/tune.md shows, or tune a study that has one, such as "
            "bench-hospitals",
        )
    changes = {}
    for number, row in enumerate(raw["run"], 1):
        place = f"{where}: run {number} ({row['name']})"
        changes[row["name"]] = _chosen(base, row, tune, place)
        for trial, changed in enumerate(changes[row["name"]], 1):
            values = _untested(plain_row(row, changed))
            label = trial_label(row.get("label", row["name"]), trial, changed)
            made["run"].append({**values, "name": trial_name(row["name"], trial), "label": label})
    few = [f"{row} ({len(mine)})" for row, mine in changes.items() if len(mine) < tune.trials]
    if few:
        raise ConfigError(
            f"rows with fewer different settings than {tune.trials} trials: {', '.join(few)}",
            where=f"{where}: tune",
            remedy="add values to their tune or to tune.common, or lower tune.trials",
        )
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
    """What a row's trials change: nothing, then its own ranges, then what all have in common.

    Fewer than `trials`, where there are no more different settings.
    """
    own = _grid(_ranges(row.get("tune", {}), f"{place}, tune"), f"{place}, tune")
    common = _grid(_ranges(tune.common, f"{place}, tune.common"), f"{place}, tune.common")

    def settings(changes: Changes) -> str:
        """The row's settings, which tell trials apart; refuses wrong ones."""
        run = parse_run(merge(base, plain_row(row, changes)), f"{place}, tune")
        return json.dumps([run.values()[part] for part in TUNABLE])

    # All single values are checked: a refused one is named, whether it is tried or not.
    known: dict[str, Changes] = {settings({}): {}}
    for changes in own:
        known.setdefault(settings(changes), changes)
    shared = {settings(changes): changes for changes in common}
    if len(known) > tune.trials:
        return _drawn(list(known.values()), tune, str(row["name"]))
    mixed = ({**other, **mine} for other in common for mine in own)
    for text, changes in chain(shared.items(), ((settings(each), each) for each in mixed)):
        if len(known) < tune.trials:
            known.setdefault(text, changes)
    return list(known.values())


def _drawn(settings: Sequence[Changes], tune: Tune, row: str) -> list[Changes]:
    """The first, and as many others as there are trials, drawn by the first seed and the row."""
    draws = Seeds(tune.seeds[0]).generator(row, Purpose.TRIALS)
    order = torch.randperm(len(settings) - 1, generator=draws)[: tune.trials - 1]
    return [settings[0], *(settings[1 + n] for n in sorted(order.tolist()))]


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


def _grid(ranges: Mapping[str, Sequence[Any]], place: str) -> list[Changes]:
    """Every combination of the values."""
    size = prod(map(len, ranges.values()))
    if size > MOST:
        raise ConfigError(
            f"{size} combinations of values, and at most {MOST} are allowed",
            where=place,
            remedy="take settings or values out",
        )
    return [dict(zip(ranges, each, strict=True)) for each in product(*ranges.values()) if ranges]
