"""Settings as a report shows them: paths, origins, names of files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autofedavg.experiment.machine_paths import PATHS, entries
from autofedavg.federation.settings import Exchange

MANY = 8  # sites: more do not fit side by side
LOCAL = ("fold", "hold", *PATHS)  # may differ between repeats of a row
NEW_IN_METHODS: dict[str, dict[str, Any]] = {  # settings that earlier run folders lack
    "auto-fedavg": {"objective": "even", "clip_steps": 100.0},
    "fedavg": {"redraw": 10},
}
NEW_IN_TASKS: dict[str, Any] = {"mirrored": [], "mirrored_in": ["train"]}


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of nested values."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def shared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that repeats of a row share, with what is newer than the run filled in.

    Where files lie on a machine is none of them: the environment holds what is in them.
    """
    task = {key: value for key, value in config["task"].items() if key not in LOCAL}
    return {
        "test_local": "auto",
        **config,
        "exchange": {**Exchange().model_dump(), **config.get("exchange", {})},
        "method": {**NEW_IN_METHODS.get(config["method"]["name"], {}), **config["method"]},
        "task": {**NEW_IN_TASKS, **task},
    }


def stem(name: str) -> str:
    """A row's name as part of a file's name; other names give other files.

    Example:
        >>> stem("fedavg"), stem("a b")
        ('fedavg', 'a-b-c8687a')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def origins_in(text: str) -> Iterator[tuple[str, str]]:
    """(path, origin) of every value of a config.toml: the comment behind it."""
    for entry in entries(text):
        yield entry.path, entry.behind.strip().removeprefix("#").strip()
