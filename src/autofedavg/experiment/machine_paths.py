"""Where files lie on a machine, which is nobody else's business: what is published leaves it out.

Settings that hold paths are blanked, runs are called by their study, row and seed, and of a path in
a sentence only the last name stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.core.errors import RunError
from autofedavg.experiment.files import naming, settings_in, values_in
from autofedavg.experiment.folder import study_home

PATHS = ("root", "datalist", "cache")  # settings of tasks that hold paths
# From a slash, or a home's ~, to the end of the name; names may hold spaces, but no second path.
_PATH = re.compile(r"""(?<![\w.:/~-])(?:~\w*)?/(?=[^\s/])(?:(?!\s(?:~\w*)?/)[^:;,"'()<>\n])*""")


class Entry(NamedTuple):
    """A line of a config.toml that sets a value, and the text around it; `path` is dotted."""

    path: str
    value: Any
    line: str
    before: str
    behind: str


def run_name(run: Path) -> str:
    """A run folder as others may know it: study, row, fold and seed, without what is above."""
    whole, home = run.resolve(), study_home(run)
    return str(whole.relative_to(home.parent if home else whole.parent.parent))


def without_paths(text: str) -> str:
    """A sentence in which absolute paths are cut down to their last names.

    Example:
        >>> without_paths("/home/me/my runs/a.csv: not found; look below /mnt/scans, or on a/b")
        'a.csv: not found; look below scans, or on a/b'
    """
    return _PATH.sub(lambda found: found[0].rstrip("/").rpartition("/")[2], text)


def tells_place(path: str, value: Any) -> bool:
    """Whether a setting says where something lies on the machine that wrote it."""
    table, _, name = path.rpartition(".")
    if table.partition(".")[0] != "task" or not isinstance(value, str) or not value:
        return False
    return (table == "task" and name in PATHS) or value.startswith(("/", "~"))


def blanked(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings with nothing where a path was."""
    return {
        name: blanked(value, f"{above}{name}.")
        if isinstance(value, Mapping)
        else ("" if tells_place(f"{above}{name}", value) else value)
        for name, value in values.items()
    }


def blanked_config(text: str, where: Path) -> str:
    """A config.toml with nothing where a path was; all else, comments too, stays as it is.

    Raises:
        RunError: it is not TOML, or not as this package writes it.
    """
    made = text
    for entry in entries(text):
        if tells_place(entry.path, entry.value):
            made = made.replace(entry.line, f'{entry.before}""{entry.behind}')
    with naming(where):
        if settings_in(made) == blanked(settings_in(text)):
            return made
    raise RunError(
        "its paths cannot be left out, for it was changed by hand",
        where=str(where),
        remedy="put its task's paths on one line each, in double quotes",
    )


def blanked_rounds(content: bytes) -> bytes:
    """The lines of a rounds.jsonl; what a client said of its files names no folder any more.

    Raises:
        ValueError: a line is damaged.
    """
    return b"\n".join(map(_blanked_round, content.split(b"\n")))


def _blanked_round(line: bytes) -> bytes:
    if b'"reason"' not in line:
        return line
    content = values_in(line)
    events = content.get("events") or []
    told = [
        {**event, "reason": without_paths(event["reason"])} if event.get("reason") else event
        for event in events
    ]
    return line if told == events else json.dumps({**content, "events": told}).encode()


def entries(text: str) -> Iterator[Entry]:
    """The values of a config.toml, as far as this package wrote them."""
    table = ""
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            table = line.strip().strip("[]") + "."
        key, equals, rest = line.partition(" = ")
        with suppress(ValueError):  # written by hand
            value, end = json.JSONDecoder().raw_decode(rest)
            yield Entry(table + key.strip('"'), value, line, key + equals, rest[end:])
