"""Whether run folders have changed, at the price of a few system calls a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.core.errors import RunError
from autofedavg.experiment.folder import (
    SCORES,
    SCORES_PACKED,
    STUDY,
    read_json,
    run_paths,
    study_home,
)

SHOWN = ("config.toml", "environment.json", "rounds.jsonl", "status.json", SCORES, SCORES_PACKED)
Stamp = tuple[int, int, int]  # a file's time in nanoseconds, size and inode


class FolderState(NamedTuple):
    """Run folders at a moment; two are equal when nothing that a report shows has changed."""

    paths: tuple[Path, ...]  # those that have runs
    state: str  # "waiting" for a first run, "running" while more is to come, or "finished"
    stamps: dict[Path, Stamp]  # of every file that a report is made from

    @property
    def scores(self) -> dict[Path, Stamp]:
        """The stamps of test scores."""
        names = (SCORES, SCORES_PACKED)
        return {path: known for path, known in self.stamps.items() if path.name in names}


def stamp(path: Path) -> Stamp:
    """Differs whenever the file does; zeros where there is none."""
    try:
        about = path.stat()
    except OSError:
        return 0, 0, 0
    return about.st_mtime_ns, about.st_size, about.st_ino


def find(paths: Sequence[Path]) -> FolderState:
    """Looks at run folders, or folders above them, without reading rounds or scores."""
    runs: dict[Path, Path] = {}  # with the path each was found by
    for path in paths:
        with suppress(RunError, OSError):  # no run yet, or a folder just removed
            runs |= {run.resolve(): path for run in run_paths([path])}
    homes = {run: study_home(run) for run in runs}
    states = {run: _read(run / "status.json").get("state", "running") for run in runs}
    state = "running" if "running" in states.values() else "finished" if runs else "waiting"
    for home in {home for home in homes.values() if home}:
        # A run that is named alone does not wait for its study.
        named = [run for run in runs if home.is_relative_to(runs[run].resolve())]
        mine = [states[run] for run in named if homes[run] == home]
        wanted = sum(len(row["jobs"]) for row in _read(home / STUDY).get("runs", []))
        if set(mine) == {"finished"} and len(mine) < wanted:
            state = "running"
    watched = [run / name for run in runs for name in SHOWN]
    watched += [home / STUDY for home in homes.values() if home]
    stamps = {path: known for path in watched if any(known := stamp(path))}
    return FolderState(tuple(dict.fromkeys(runs.values())), state, stamps)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except RunError:  # half-written, or damaged
        return {}
