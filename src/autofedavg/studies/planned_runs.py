"""The runs that a study plans, and the file in its folder that lists them: study.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from autofedavg.core.errors import RunError
from autofedavg.experiment.config import Study, parse_run
from autofedavg.experiment.folder import STUDY, Ledger, in_order, read_json, run_path
from autofedavg.experiment.folder_writer import disk_errors, write_atomically
from autofedavg.experiment.rows import RunConfig
from autofedavg.studies.machine import Machine

RECORDED = ("engine", "device", "threads")  # of the machine that a run was planned for


class PlannedRun(NamedTuple):
    """A run that the study asks for.

    Attributes:
        folder: the run folder.
        config: its row.
        seed: of the run.
        machine: where to compute it if it has not started.
    """

    folder: Path
    config: RunConfig
    seed: int
    machine: Machine

    @property
    def started(self) -> bool:
        return (self.folder / "config.toml").exists()

    @property
    def finished(self) -> bool:
        return Ledger(self.folder).finished


def planned_runs(home: Path, asked: Machine) -> list[PlannedRun]:
    """All runs of a study folder; what `asked` leaves open is as recorded in study.json."""
    found = []
    for row in read_json(home / STUDY)["runs"]:
        config = parse_run(row["config"], str(home))
        folds = sorted({fold for fold, _ in row["jobs"] if fold is not None})
        machines = row.get("machines") or [{}] * len(row["jobs"])  # earlier versions recorded none
        for (fold, seed), recorded in zip(row["jobs"], machines, strict=True):
            kept = {key: getattr(asked, key) or recorded.get(key) for key in RECORDED}
            found.append(
                PlannedRun(
                    run_path(home, config.name, seed, fold),
                    config if fold is None else config.on_fold(fold, folds),
                    seed,
                    replace(asked, **kept),
                )
            )
    return found


def write_study_json(home: Path, study: Study, machine: Machine) -> None:
    """Adds the study's rows, seeds and folds to study.json; those of earlier calls stay.

    Raises:
        RunError: the folder has a row of that name with other settings.
    """
    path = home / STUDY
    rows = {row["config"]["name"]: row for row in read_json(path)["runs"]} if path.exists() else {}
    for config in study.runs:
        given = config.values(given_only=True)
        row = rows.setdefault(config.name, {"jobs": [], "config": given})
        if row["config"] != given:
            raise RunError(
                f"row {config.name!r} is in this study folder with other settings",
                where=str(home),
                remedy="give the row another name, or choose another --out",
            )
        jobs = [[fold, seed] for fold in study.folds or (None,) for seed in study.seeds]
        if any((job[0] is None) != (jobs[0][0] is None) for job in row["jobs"]):
            raise RunError(
                f"row {config.name!r} is in this study folder "
                + ("without folds" if study.folds else "with folds"),
                where=str(home),
                remedy="choose another --out: the two cannot be pooled",
            )
        machines = dict(zip(map(tuple, row["jobs"]), row.get("machines", []), strict=False))
        machines |= {
            (fold, seed): {key: getattr(machine, key) for key in RECORDED} for fold, seed in jobs
        }
        row["jobs"] += [job for job in jobs if job not in row["jobs"]]
        row["machines"] = [machines.get((fold, seed), {}) for fold, seed in row["jobs"]]
    content = {
        "name": study.name,
        "title": study.title,
        "baseline": study.baseline,
        "rows": list(study.rows),
        "runs": in_order(rows, study.rows),
    }
    with disk_errors(home):
        home.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
