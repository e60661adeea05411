"""Run folders as a report sees them: rows with repeats, in the study's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofedavg.core.errors import RunError
from autofedavg.core.evaluation import Summary, summarise
from autofedavg.core.scores import Scores
from autofedavg.experiment.archive_reader import archives_named
from autofedavg.experiment.files import naming
from autofedavg.experiment.folder import (
    ORIGINS,
    Ledger,
    read_config,
    read_json,
    run_paths,
)
from autofedavg.experiment.machine_paths import entries, run_name, without_paths
from autofedavg.report.asked import Missing, missing_runs, refuse_unfit, study_of
from autofedavg.report.values import shared_settings

if TYPE_CHECKING:  # it brings PyTorch, which a table does not need
    from autofedavg.tasks.base import Progress


@dataclass(frozen=True)
class Repeat:
    """One run folder.

    Attributes:
        origins: where each value of the configuration comes from, by dotted path.
    """

    folder: Path
    seed: int
    fold: int | None
    state: str
    config: dict[str, Any]
    environment: dict[str, Any]
    rounds: list[dict[str, Any]]
    scores: Scores
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def origin(self, path: str) -> str:
        """Where a value comes from; one in a table of its own comes from where the table does."""
        return self.origins.get(path) or self.origins.get(path.rpartition(".")[0], "")


@dataclass(frozen=True)
class Row:
    """One row of a study: a configuration with its repeats."""

    name: str
    label: str
    repeats: tuple[Repeat, ...]
    metric: str
    folds: tuple[int | None, ...] = (None,)

    @property
    def finished(self) -> tuple[Repeat, ...]:
        """Those that count: finished, with test scores."""
        return tuple(repeat for repeat in self.repeats if repeat.finished and repeat.scores)

    @cached_property  # a study on CIFAR-10 has millions of scores, and every table asks for them
    def whole(self) -> dict[int, Scores]:
        """Seed -> scores, the folds of a cross-validation together; only seeds that have all."""
        found: dict[int, Scores] = {}
        for seed in sorted({repeat.seed for repeat in self.finished}):
            mine = [repeat for repeat in self.finished if repeat.seed == seed]
            if {repeat.fold for repeat in mine} == set(self.folds):
                scores = [repeat.scores for repeat in mine]
                found[seed] = scores[0] if len(scores) == 1 else Scores.joined(scores)
                _refuse_doubles(mine, found[seed])
        return found

    @cached_property
    def summaries(self) -> list[Summary]:
        return [summarise(scores, self.metric) for scores in self.whole.values()]


@dataclass(frozen=True)
class Results:
    """All rows of a report, and the row the others are tested against.

    Attributes:
        missing: what the studies' own folders still lack; empty where single runs are named.
        damaged: what was left out, and why; empty where nothing may be.
    """

    title: str
    rows: tuple[Row, ...]
    baseline: str
    sites: dict[str, int]
    data: str = ""
    missing: tuple[Missing, ...] = ()
    damaged: tuple[str, ...] = ()

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)


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
        study, missing = study_of(found[0]), tuple(missing_runs(paths))
    except RunError as error:
        damaged[found[0]] = error
    if damaged and not (repeats and spare_damaged):
        raise next(iter(damaged.values()))
    folds = _folds(repeats)
    _refuse_mixture(repeats)
    order = study.get("rows") or [str(row["config"]["name"]) for row in study.get("runs", [])]
    names = sorted({r.config["name"] for r in repeats}, key=lambda n: _rank(n, order))
    rows = []
    for name in names:
        mine = sorted(
            (r for r in repeats if r.config["name"] == name), key=lambda r: (r.seed, r.fold or 0)
        )
        first = mine[0]
        _refuse_other_settings(mine)
        metric = first.environment["metric"]
        rows.append(Row(name, first.config["label"], tuple(mine), metric, folds))
    rows = _told_apart(rows)
    wanted = baseline or study.get("baseline") or ("fedavg" if "fedavg" in names else "")
    if baseline and baseline not in names:
        raise RunError(
            f"baseline {baseline!r} is not among the runs",
            where="report",
            remedy=f"choose from: {', '.join(names)}",
        )
    data = repeats[0].environment["data"]
    sizes = data.get("sizes", {})
    sites = {s: sizes.get(s, sum(parts.values())) for s, parts in sorted(data["cases"].items())}
    title = str(study.get("title", "Runs"))
    told = tuple(f"{run_name(run)}: {without_paths(str(why))}" for run, why in damaged.items())
    return Results(title, tuple(rows), str(wanted), sites, str(data["data"]), missing, told)


def _told_apart(rows: Sequence[Row]) -> list[Row]:
    """Rows of one label get their names behind it: tables and figures know rows by their labels."""
    labels = [row.label for row in rows]
    return [
        replace(row, label=f"{row.label} ({row.name})") if labels.count(row.label) > 1 else row
        for row in rows
    ]


def _read(folder: Ledger) -> Repeat:
    with naming(folder.path, "this run folder is damaged", "leave it out of the report"):
        config, text = read_config(folder.path / "config.toml")
        environment = read_json(folder.path / "environment.json")
        rounds, scores = folder.rounds(), folder.scores()
        refuse_unfit(environment["data"]["cases"], config, rounds, scores)
        return Repeat(
            folder.path,
            int(environment["seed"]),
            _fold(config),
            folder.status() if (folder.path / "status.json").exists() else "not begun",
            {"label": config["name"], **config},
            {"metric": environment["metric"], "data": environment["data"], **environment},
            rounds,
            scores,
            _origins(folder.path, text),
        )


def _origins(run: Path, config: str) -> dict[str, str]:
    """Where each value comes from; in folders of version 0.1, comments of config.toml say so."""
    if (run / ORIGINS).exists():
        return dict(read_json(run / ORIGINS)["origins"])
    return {entry.path: entry.behind.strip(" #\n") for entry in entries(config)}


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
        for first, identity in ((repeats[0], _everywhere), (same_fold, _identity)):
            for what, mine in identity(other).items():
                if mine != identity(first)[what]:
                    yield what, other, first


def _refuse_other_settings(repeats: Sequence[Repeat]) -> None:
    """Repeats are the same settings with another seed; anything else must not be averaged."""
    first, *_ = repeats
    settings = shared_settings(repeat.config for repeat in repeats)
    known: dict[tuple[int, int | None], Path] = {}
    for other, its in zip(repeats, settings, strict=True):
        before = known.setdefault((other.seed, other.fold), other.folder)
        if before != other.folder:
            raise RunError(
                f"seed {other.seed} of row {other.config['name']!r} is also in {before}",
                where=str(other.folder),
                remedy="report one of them: the same run is not a repeat",
            )
        if its != settings[0]:
            raise RunError(
                f"its settings differ from those of {first.folder}, a repeat of the same row",
                where=str(other.folder),
                remedy="report them apart, or run the row again under another name",
            )


def _identity(repeat: Repeat) -> dict[str, str]:
    """What runs of one fold must share to stand in one table."""
    return {"the split of the data": repeat.environment["data"]["split_sha256"]}


def _everywhere(repeat: Repeat) -> dict[str, str]:
    """What all runs must share to stand in one table."""
    data = repeat.environment["data"]
    return {
        "the task": repeat.config["task"]["name"],
        "the data": data["data"],
        "the content of the files": data.get("content_sha256", ""),
        "the list of folds": data.get("folds_sha256", ""),
        "the metric": repeat.environment["metric"],
    }


def _fold(config: dict[str, Any]) -> int | None:
    """The fold a run tested, if it was one of a cross-validation."""
    fold = config["task"].get("fold", -1)
    return fold if fold >= 0 else None


def _folds(repeats: Sequence[Repeat]) -> tuple[int | None, ...]:
    """The folds a row needs for its numbers: all that any run was one of."""
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


def _refuse_doubles(repeats: Sequence[Repeat], scores: Scores) -> None:
    """Every case is tested once by every model of a seed, over all folds."""
    for tested, column in scores.columns():
        if len(set(column.cases)) < len(column.cases):
            (case, _), *_ = Counter(column.cases).most_common(1)
            raise RunError(
                f"case {case} of {tested.site} is tested twice by {tested.model}",
                where=", ".join(str(repeat.folder) for repeat in repeats),
                remedy="run the folds anew with one and the same data list",
            )


def _rank(name: str, order: Sequence[str]) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)
