"""Settings as a report shows them: paths, origins, names of files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autofedavg.experiment.machine_paths import PATHS

MANY = 8  # sites: more do not fit side by side
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


def stem(name: str) -> str:
    """A row's name as part of a file's name; other names give other files.

    Example:
        >>> stem("fedavg"), stem("a b")
        ('fedavg', 'a-b-c8687a')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
