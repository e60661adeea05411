"""Run folders to publish: everything a report needs, without the weights, scores compressed.

Nor do they say where files lie on the machine that made them: no paths, and no log.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.experiment.bounded_reader import LARGE, content_of, naming
from autofedavg.experiment.folder import (
    PARTIAL,
    SCORES,
    SCORES_PACKED,
    STUDY,
    Ledger,
    in_order,
    read_json,
    read_toml,
    run_path,
    run_paths,
    study_home,
)
from autofedavg.experiment.folder_writer import disk_errors, write_atomically
from autofedavg.experiment.machine_paths import blanked, blanked_config, blanked_rounds

KEPT = ("config.toml", "environment.json", "rounds.jsonl", "status.json")


def archive(paths: Iterable[Path], out: Path) -> list[Path]:
    """Copies finished runs into an archive, beside those that are there; the new ones.

    Args:
        paths: run folders, or folders above them.
        out: the archive: a folder for every study, laid out as the study's own.

    Raises:
        RunError: a run is not finished, belongs to no study, or is in the archive already with
            other contents.
    """
    runs = run_paths(paths)
    homes = {run: _home(run) for run in runs}
    for run in runs:
        _refuse_unfinished(run)
    made = []
    with disk_errors(out, "archive again: what is there already is passed over"):
        for run in runs:
            home = homes[run]
            place = out / home.name / run.resolve().relative_to(home)
            if place.exists():
                _refuse_other(run, place)
                continue
            _copy(run, place)
            made.append(place)
        for home in sorted(set(homes.values())):
            _list(home, out / home.name, {run.resolve() for run in runs if homes[run] == home})
    return made


def _home(run: Path) -> Path:
    home = study_home(run)
    if home is None:
        raise RunError(
            "this run belongs to no study",
            where=str(run),
            remedy="archive runs of `autofedavg run`",
        )
    return home


def _refuse_unfinished(run: Path) -> None:
    ledger = Ledger(run)
    status = ledger.status()
    if status != "finished":
        raise RunError(
            f"this run is not finished, but {status}",
            where=str(run),
            remedy="finish it with `autofedavg resume`, or leave it out",
        )
    _ = read_toml(run / "config.toml"), read_json(run / "environment.json")
    _ = ledger.rounds(), ledger.scores()  # what is damaged is not published


def _refuse_other(run: Path, place: Path) -> None:
    for name in ("config.toml", "rounds.jsonl"):
        if _published(run / name) != _published(place / name):
            raise RunError(
                f"another run is in the archive at {place}",
                where=str(run),
                remedy="remove that one, or archive elsewhere",
            )


def _copy(run: Path, place: Path) -> None:
    partial = place.with_name(place.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in KEPT:
        (partial / name).write_bytes(_published(run / name))
    # From another archive as they are; without a time, the same scores make the same bytes.
    there = (run / SCORES_PACKED).exists()
    scores = _published(run / (SCORES_PACKED if there else SCORES))
    packed = scores if there else gzip.compress(scores, mtime=0)
    (partial / SCORES_PACKED).write_bytes(packed)
    partial.rename(place)


def _published(path: Path) -> bytes:
    """A file of a run as it is published."""
    with naming(path):
        content = content_of(path, LARGE)
        if path.name == "config.toml":
            return blanked_config(content.decode(), path).encode()
        return blanked_rounds(content) if path.name == "rounds.jsonl" else content


def _list(home: Path, place: Path, runs: Collection[Path]) -> None:
    """Lists the archived runs in the archive's study.json, beside those that it lists."""
    content = read_json(home / STUDY)
    before = read_json(place / STUDY) if (place / STUDY).exists() else {"runs": []}
    rows: dict[str, dict[str, Any]] = {row["config"]["name"]: row for row in before["runs"]}
    for row in content["runs"]:
        name = row["config"]["name"]
        listed = rows.setdefault(name, {"jobs": [], "config": blanked(row["config"])})
        for fold, seed in row["jobs"]:
            here = run_path(home, name, seed, fold) in runs
            if here and [fold, seed] not in listed["jobs"]:
                listed["jobs"].append([fold, seed])
    there = {name: row for name, row in rows.items() if row["jobs"]}
    order = content.get("rows") or before.get("rows", [])
    content |= {"rows": order, "runs": in_order(there, order)}
    write_atomically(place / STUDY, json.dumps(content, indent=1).encode() + b"\n")
