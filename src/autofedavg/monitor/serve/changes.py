"""Whether run folders have changed since the last look, told without reading rounds or scores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autofedavg.core.errors import RunError
from autofedavg.experiment.folder import SCORES, SCORES_PACKED, STUDY, read_json

State = Literal["waiting", "running", "finished"]
Stamp = tuple[int, int, int]  # time of change, size, inode
BOTH_SCORES = (SCORES, SCORES_PACKED)
WATCHED = ("config.toml", "environment.json", "rounds.jsonl", "status.json", *BOTH_SCORES)


@dataclass(frozen=True)
class Look:
    """What a look at some folders found; two looks are equal when nothing has changed.

    Attributes:
        runs: run folders, as found.
        state: whether more is to be expected. It is never newer than a report made afterwards:
            a page that says "finished" has the last round.
        stamps: of every file a report is made from.
    """

    runs: tuple[Path, ...]
    state: State
    stamps: dict[Path, Stamp]

    def scores(self) -> dict[Path, Stamp]:
        """The part that example pictures depend on."""
        return {path: stamp for path, stamp in self.stamps.items() if path.name in BOTH_SCORES}


def look_at(paths: Sequence[Path]) -> Look:
    """Looks at run folders, or at folders above them; what cannot be read is not there."""
    runs: dict[Path, None] = {}
    studies: dict[Path, None] = {}
    for folder, names in _walk(paths):
        if STUDY in names:
            studies[folder / STUDY] = None
        if "config.toml" in names:
            runs[folder] = None
    state = _state_of_all([*runs], [*studies])
    watched = {run / name: None for run in runs for name in WATCHED}
    # A run may be named alone; its study's title lies one folder above its row, with folds two.
    watched.update({above / STUDY: None for run in runs for above in run.parents[1:3]})
    stamps = {path: stamp for path in (*watched, *studies) if (stamp := _stamp(path))}
    return Look(tuple(runs), state, stamps)


def _walk(paths: Sequence[Path]) -> Iterator[tuple[Path, set[str]]]:
    """Folders with the names of their files; what lies inside a run is left alone."""
    for path in paths:
        for folder, below, names in os.walk(path.resolve()):
            below.sort()
            if "config.toml" in names:
                below.clear()
            yield Path(folder), set(names)


def _stamp(path: Path) -> Stamp | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def _state_of_all(runs: Sequence[Path], studies: Sequence[Path]) -> State:
    """Running while a run goes on, or a study that was not stopped has runs to begin."""
    if not runs:
        return "waiting"
    states = {run: _state(run) for run in runs}
    if "running" in states.values():
        return "running"
    for study in studies:
        mine = [state for run, state in states.items() if run.is_relative_to(study.parent)]
        if len(mine) < _asked(study) and set(mine) == {"finished"}:
            return "running"
    return "finished"


def _state(run: Path) -> str:
    return str(_read(run / "status.json").get("state", "running"))


def _asked(study: Path) -> int:
    """How many runs the study was asked for."""
    return sum(len(row["jobs"]) for row in _read(study).get("runs", []))


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except RunError:  # half-written, or damaged
        return {}
