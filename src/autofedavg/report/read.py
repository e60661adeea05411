"""Reads run folders into rows; refuses what no run writes, and what cannot stand in one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofedavg.core.errors import RunError
from autofedavg.core.scores import Scores
from autofedavg.experiment.archive_reader import archives_named, as_folder
from autofedavg.experiment.files import naming
from autofedavg.experiment.folder import (
    ORIGINS,
    STUDY,
    Ledger,
    in_order,
    read_config,
    read_json,
    run_path,
    run_paths,
    study_home,
)
from autofedavg.experiment.folder_schema import HUGE
from autofedavg.experiment.machine_paths import entries, run_name, without_paths
from autofedavg.report.families import in_families
from autofedavg.report.repeats import Missing, Repeat, Results, Row, shared_settings

if TYPE_CHECKING:  # it brings PyTorch, which a table does not need
    from autofedavg.tasks.base import Progress


@archives_named()
def read_results(
    paths: Sequence[Path],
    baseline: str = "",
    progress: Progress | None = None,
    *,
    spare_damaged: bool = False,
) -> Results:
    """Reads run folders into rows.

    Args:
        paths: run folders, archives, or folders above them.
        baseline: name of the row to test against; the study's own when empty.
        progress: told of every folder; a study on CIFAR-10 has 170,000 scores in each.
        spare_damaged: whether damaged folders are left out and told, as long as there are others.

    Raises:
        RunError: a folder is damaged, or the runs do not belong into one table.
    """
    found = run_paths(paths)
    repeats: list[Repeat] = []
    damaged: dict[Path, RunError] = {}
    for done, path in enumerate(found, 1):
        try:
            repeats.append(_read(Ledger(path)))
        except RunError as error:
            damaged[path] = error
        if progress:
            progress("reading runs", done, len(found))
    study: dict[str, Any] = {}
    missing: tuple[Missing, ...] = ()
    try:
        home = study_home(found[0])
        study = read_json(home / STUDY) if home else {}
        missing = tuple(_missing_runs(paths))
    except RunError as error:
        damaged[found[0]] = error
    if damaged and not (repeats and spare_damaged):
        raise next(iter(damaged.values()))
    folds = _folds(repeats)
    _refuse_mixture(repeats)
    order = study.get("rows") or [str(row["config"]["name"]) for row in study.get("runs", [])]
    by_name: dict[str, list[Repeat]] = {}
    for repeat in sorted(repeats, key=lambda r: (r.config["name"], r.seed, r.fold or 0)):
        by_name.setdefault(repeat.config["name"], []).append(repeat)
    rows = []
    for mine in in_order(by_name, list(dict.fromkeys(order))):
        _refuse_other_settings(mine)
        config, metric = mine[0].config, mine[0].environment["metric"]
        rows.append(Row(config["name"], config["label"], tuple(mine), metric, folds))
    names = [row.name for row in rows]
    if baseline and baseline not in names:
        raise RunError(
            f"baseline {baseline!r} is not among the runs",
            where="report",
            remedy=f"choose from: {', '.join(names)}",
        )
    data = repeats[0].environment["data"]
    sizes = data.get("sizes", {})
    return Results(
        str(study.get("title", "Runs")),
        _told_apart(in_families(rows)),
        str(baseline or study.get("baseline") or ("fedavg" if "fedavg" in names else "")),
        {s: sizes.get(s, sum(parts.values())) for s, parts in sorted(data["cases"].items())},
        str(data["data"]),
        missing,
        tuple(f"{run_name(run)}: {without_paths(str(why))}" for run, why in damaged.items()),
    )


def _told_apart(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of one label get their names behind it: tables and figures know rows by their labels."""
    labels = [row.label for row in rows]
    return tuple(
        replace(row, label=f"{row.label} ({row.name})") if labels.count(row.label) > 1 else row
        for row in rows
    )


def _missing_runs(paths: Sequence[Path]) -> Iterator[Missing]:
    """Runs that the studies at or below the paths ask for and that were not begun."""
    folders = map(as_folder, paths)
    for listed in sorted({found for folder in folders for found in folder.rglob(STUDY)}):
        for row in read_json(listed).get("runs", []):
            name = str(row["config"]["name"])
            for fold, seed in row["jobs"]:
                if not (run_path(listed.parent, name, seed, fold) / "config.toml").exists():
                    yield Missing(str(row["config"].get("label", name)), seed, fold)


def _read(folder: Ledger) -> Repeat:
    with naming(folder.path, "this run folder is damaged", "leave it out of the report"):
        config, text = read_config(folder.path / "config.toml")
        environment = read_json(folder.path / "environment.json")
        # First: a run that ends while it is read was not finished, and has no scores yet.
        state = folder.seen_status() if (folder.path / "status.json").exists() else "not begun"
        rounds, scores = folder.rounds(config.get("rounds")), folder.scores()
        _refuse_unfit(environment["data"]["cases"], config, rounds, scores)
        fold = config["task"].get("fold", -1)
        return Repeat(
            folder.path,
            int(environment["seed"]),
            fold if fold >= 0 else None,
            state,
            {"label": config["name"], **config},
            {"metric": environment["metric"], "data": environment["data"], **environment},
            rounds,
            scores,
            _origins(folder.path, text),
            folder.ceiling(),
        )


def _refuse_unfit(
    cases: Mapping[str, Any],
    config: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    scores: Scores,
) -> None:
    """Refuses what no run writes, and what tables and figures could not be made from.

    Raises:
        ValueError, LookupError: with what is wrong.
    """
    _ = config["method"]["name"], config["task"]["name"]
    for line in rounds:
        alpha = line["alpha"]
        if alpha is not None and len(alpha) != len(cases):
            raise ValueError(f"round {line['t']} has {len(alpha)} weights, not {len(cases)}")
        numbers = [line.get(of, {}).get("mean") for of in ("validation", "test")]
        numbers += line.get("loss", {}).values()
        numbers += [x for losses in line.get("learning_loss", {}).values() for x in losses]
        for per_site in alpha or []:
            numbers += per_site if isinstance(per_site, list) else [per_site]
        if not all(number is None or -HUGE <= number <= HUGE for number in numbers):
            raise ValueError(f"round {line['t']} has a number that is not finite, or too large")
    for tested in scores.groups:
        if tested.site not in cases:
            raise ValueError(f"scores.csv names {tested.site}, which is no site of this run")


def _origins(run: Path, config: str) -> dict[str, str]:
    """Where each value comes from; in folders of version 0.1, comments of config.toml say so."""
    if (run / ORIGINS).exists():
        return dict(read_json(run / ORIGINS)["origins"])
    return {entry.path: entry.behind.strip(" #\n") for entry in entries(config)}


def _folds(repeats: Sequence[Repeat]) -> tuple[int | None, ...]:
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


def _refuse_mixture(repeats: Sequence[Repeat]) -> None:
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


def _refuse_other_settings(repeats: Sequence[Repeat]) -> None:
    """Repeats are the same settings with another seed; anything else must not be averaged."""
    settings = shared_settings(repeat.config for repeat in repeats)
    known: dict[tuple[int, int | None], Path] = {}
    for other, its in zip(repeats, settings, strict=True):
        before = known.setdefault((other.seed, other.fold), other.folder)
        if before != other.folder:
            raise RunError(
                f"seed {other.seed} of row {other.config['name']!r} is also in {before}",
                where=str(other.folder),
                remedy="name one of them: the same run is not a repeat",
            )
        if its != settings[0]:
            raise RunError(
                f"its settings differ from those of {repeats[0].folder}, a repeat of the same row",
                where=str(other.folder),
                remedy="report them apart, or run the row again under another name",
            )
