"""Archives of runs to publish: one zip file per study, without the weights.

They hold what every report needs. They do not say where files lie on the machine that made them:
no paths, and no log. The same runs always give the same bytes.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.experiment.archive_reader import SUFFIX, archives_named, as_folder
from autofedavg.experiment.files import (
    LARGE,
    content_of,
    make_folder,
    naming,
    refuse_file,
    replacing,
    unpacked,
)
from autofedavg.experiment.folder import (
    CEILING,
    ORIGINS,
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
from autofedavg.experiment.folder_writer import disk_errors
from autofedavg.experiment.machine_paths import blanked, blanked_config, blanked_rounds
from autofedavg.experiment.trial_names import diverged

KEPT = ("config.toml", "environment.json", ORIGINS, "rounds.jsonl", SCORES, "status.json", CEILING)
SOMETIMES = (ORIGINS, CEILING)  # runs of version 0.1 have no origins
NO_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that zip knows


@archives_named()
def archive(paths: Iterable[Path], out: Path) -> list[Path]:
    """Adds finished runs to the archives of their studies, `<out>/<study>.zip`.

    Args:
        paths: run folders, archives, or folders above them.
        out: the folder of the archives; runs that are in them stay.

    Returns:
        The runs that are new, as paths in their archives.

    Raises:
        RunError: `out` cannot be a folder, or a run is not finished, belongs to no study, or is in
            the archive already with other contents.
    """
    refuse_file(out)
    homes: dict[Path, list[Path]] = {}
    for run in run_paths(paths):
        home = study_home(run)
        if home is None:
            remedy = "archive runs of `autofedavg run`"
            raise RunError("this run belongs to no study", where=str(run), remedy=remedy)
        homes.setdefault(home, []).append(run.resolve())
        _refuse_unfinished(run)
    made = []
    with disk_errors(out, "archive again: the archive is still as it was"):
        for home, runs in sorted(homes.items()):
            made += _add(home, runs, out / f"{home.name}{SUFFIX}")
    return made


def _add(home: Path, runs: Collection[Path], place: Path) -> list[Path]:
    """Adds runs of one study to its archive; the whole file is replaced, or none of it."""
    there = as_folder(place) if place.exists() else None
    before = {run.relative_to(there): run for run in run_paths([place])} if there else {}
    new = {}
    for run in runs:
        name = run.relative_to(home)
        if name not in before:
            new[name] = run
        elif not _same(run, before[name]):
            raise RunError(
                f"another run is in the archive at {place / name}",
                where=str(run),
                remedy="remove that archive, or archive elsewhere",
            )
        elif _ceiling_of(run) not in (None, _ceiling_of(before[name])):  # computed since
            new[name] = run
    if not new:
        return []
    listed = _listed(home, there, {home / name for name in new})
    files = {
        str(name / file): run
        for name, run in {**before, **new}.items()
        for file in KEPT
        if (run / file).exists() or not (file in SOMETIMES or (file == SCORES and diverged(run)))
    }
    make_folder(place.parent)
    with replacing(place) as handle, zipfile.ZipFile(handle, "w") as packed:
        _write(packed, STUDY, json.dumps(listed, indent=1).encode() + b"\n")
        for path, run in sorted(files.items()):
            _write(packed, path, _published(run, Path(path).name))
    return [place / name for name in new]


def _write(packed: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, NO_TIME)
    entry.create_system, entry.external_attr = 3, 0o100644 << 16  # the same on every machine
    # Scores of one case under many models repeat far apart: a third of what deflate makes of them.
    packed.writestr(entry, content, zipfile.ZIP_LZMA)


def _refuse_unfinished(run: Path) -> None:
    ledger = Ledger(run)
    status = ledger.seen_status()
    if status != "finished" and not diverged(run):
        raise RunError(
            f"this run is not finished, but {status}",
            where=str(run),
            remedy="finish it with `autofedavg resume`, or leave it out",
        )
    config = read_toml(run / "config.toml")  # damaged files are not published
    read_json(run / "environment.json")
    _ = ledger.rounds(config.get("rounds")), ledger.scores(), ledger.ceiling()
    if (run / ORIGINS).exists():
        read_json(run / ORIGINS)


def _same(run: Path, other: Path) -> bool:
    names = ("config.toml", "rounds.jsonl")
    return all(_published(run, name) == _published(other, name) for name in names)


def _ceiling_of(run: Path) -> bytes | None:
    return _published(run, CEILING) if (run / CEILING).exists() else None


def _published(run: Path, name: str) -> bytes:
    """A file of a run as it is published."""
    packed = name == SCORES and not (run / SCORES).exists()  # as archives of version 0.1 have it
    path = run / (SCORES_PACKED if packed else name)
    with naming(path):
        content = content_of(path, LARGE)
        if name == "config.toml":
            return blanked_config(content.decode(), path).encode()
        if name == "rounds.jsonl":
            return blanked_rounds(content)
        return unpacked(content) if packed else content


def _listed(home: Path, there: Path | None, new: Collection[Path]) -> Mapping[str, Any]:
    """The study.json of an archive: the new runs, and those that it lists already."""
    content = read_json(home / STUDY)
    before = read_json(there / STUDY) if there else {"runs": []}
    rows: dict[str, dict[str, Any]] = {row["config"]["name"]: row for row in before["runs"]}
    for row in content["runs"]:
        name = row["config"]["name"]
        listed = rows.setdefault(name, {"jobs": [], "config": blanked(row["config"])})
        for fold, seed in row["jobs"]:
            here = run_path(home, name, seed, fold) in new
            if here and [fold, seed] not in listed["jobs"]:
                listed["jobs"].append([fold, seed])
    filled = {name: row for name, row in rows.items() if row["jobs"]}
    order = _order_of_both(before.get("rows", []), content.get("rows", []))
    return content | {"rows": order, "runs": in_order(filled, order)}


def _order_of_both(before: Sequence[str], new: Sequence[str]) -> list[str]:
    """The order of an archive's rows: the study's, where it has all of them.

    Else other rows are put after the one that they stand after in the study.
    """
    if set(before) <= set(new):
        return [*new]
    order = [*before]
    for place, name in enumerate(new):
        if name not in order:
            after = [order.index(other) for other in new[:place] if other in order]
            order.insert(after[-1] + 1 if after else len(order), name)
    return order
