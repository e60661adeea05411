"""What studies ask for: their titles and orders, and the runs that they still lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.experiment.archive_reader import as_folder
from autofedavg.experiment.folder import STUDY, read_json, run_path, study_home


class Missing(NamedTuple):
    """A run that a study asks for and that has no folder."""

    label: str
    seed: int
    fold: int | None


def missing_runs(paths: Sequence[Path]) -> Iterator[Missing]:
    """Runs that the studies at or below the paths ask for and that were not begun."""
    folders = map(as_folder, paths)
    for listed in sorted({found for folder in folders for found in folder.rglob(STUDY)}):
        for row in read_json(listed).get("runs", []):
            name = str(row["config"]["name"])
            for fold, seed in row["jobs"]:
                if not (run_path(listed.parent, name, seed, fold) / "config.toml").exists():
                    yield Missing(str(row["config"].get("label", name)), seed, fold)


def study_of(folder: Path) -> dict[str, Any]:
    """The study.json of the study that a run lies in; empty where it lies in none."""
    home = study_home(folder)
    return read_json(home / STUDY) if home else {}
