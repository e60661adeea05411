"""Which runs can stand in one table, and which settings tell them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.experiment.machine_paths import PATHS
from autofedavg.report.repeats import Repeat

LOCAL = ("fold", "hold", *PATHS)  # may differ between repeats of a row


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of nested values."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def shared_settings(configs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings of runs that can be compared; older runs get what they lack at its default.

    Where files lie on a machine is none of them: the environment holds what is in them.
    """
    shared = [_without_places(config) for config in configs]
    known: dict[tuple[Any, Any], set[frozenset[str]]] = {}
    for config in shared:
        kind = (config["task"].get("name"), config["method"]["name"])
        known.setdefault(kind, set()).add(frozenset(path for path, _ in flat(config)))
    if all(len(paths) == 1 for paths in known.values()):
        return shared
    from autofedavg.experiment.config import completed  # brings PyTorch

    return [_without_places(completed(config)) for config in shared]


def _without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    task = {key: value for key, value in config["task"].items() if key not in LOCAL}
    return {**config, "task": task}


def folds_of(repeats: Sequence[Repeat]) -> tuple[int | None, ...]:
    """The folds that a row needs for its numbers: all that any run was one of."""
    asked = {fold for repeat in repeats for fold in repeat.environment.get("folds") or []}
    found = {repeat.fold for repeat in repeats}
    if None in found and len(found) > 1:
        whole = next(repeat for repeat in repeats if repeat.fold is None)
        raise RunError(
            "it is no fold of a cross-validation, and other runs are",
            where=str(whole.folder),
            remedy="report them apart: their test cases cannot be pooled",
        )
    return tuple(sorted(asked | found, key=lambda fold: -1 if fold is None else fold))


def refuse_mixture(repeats: Sequence[Repeat]) -> None:
    """Refuses runs whose numbers cannot stand in one table."""
    for what, other, first in apart(repeats):
        raise RunError(
            f"{what} differs from that of {first.folder}",
            where=str(other.folder),
            remedy="report them apart: their numbers cannot stand in one table",
        )


def apart(repeats: Sequence[Repeat]) -> Iterator[tuple[str, Repeat, Repeat]]:
    """(what, run, first run) of all that keeps runs from standing in one table."""
    of_fold: dict[int | None, Repeat] = {}
    for other in repeats:
        same_fold = of_fold.setdefault(other.fold, other)
        for first, identity in ((repeats[0], _everywhere), (same_fold, _in_a_fold)):
            for what, mine in identity(other).items():
                if mine != identity(first)[what]:
                    yield what, other, first


def _everywhere(repeat: Repeat) -> dict[str, str]:
    """What all runs must share."""
    data = repeat.environment["data"]
    return {
        "the task": repeat.config["task"]["name"],
        "the data": data["data"],
        "the content of the files": data.get("content_sha256", ""),
        "the list of folds": data.get("folds_sha256", ""),
        "the metric": repeat.environment["metric"],
    }


def _in_a_fold(repeat: Repeat) -> dict[str, str]:
    """What runs of one fold must share."""
    return {"the split of the data": repeat.environment["data"]["split_sha256"]}


def refuse_other_settings(repeats: Sequence[Repeat]) -> None:
    """Repeats are the same settings with another seed; anything else must not be averaged."""
    settings = shared_settings(repeat.config for repeat in repeats)
    known: dict[tuple[int, int | None], Path] = {}
    for other, its in zip(repeats, settings, strict=True):
        before = known.setdefault((other.seed, other.fold), other.folder)
        if before != other.folder:
            raise RunError(
                f"seed {other.seed} of row {other.config['name']!r} is also in {before}",
                where=str(other.folder),
                remedy="report one of them: the same run is not a repeat",
            )
        if its != settings[0]:
            raise RunError(
                f"its settings differ from those of {repeats[0].folder}, a repeat of the same row",
                where=str(other.folder),
                remedy="report them apart, or run the row again under another name",
            )
