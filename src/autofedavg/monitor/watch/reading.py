"""Reads the state of a run from its folder; writes nothing."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.experiment.files import naming, opened
from autofedavg.experiment.folder import (
    STUDY,
    Ledger,
    Rounds,
    read_json,
    read_toml,
    run_path,
    run_paths,
)
from autofedavg.experiment.lock import lock_of
from autofedavg.monitor.watch.changes import stamp
from autofedavg.monitor.watch.state import (
    BestRound,
    RunState,
    SiteState,
    StudyState,
    WeightRange,
)

RECENT = 10  # rounds whose median is the time of a round
LOG_LINES, LOG_BYTES = 8, 16384
FILES = ("config.toml", "environment.json", "status.json")
SIGNS = ("status.json", "rounds.jsonl", "log.txt")  # of life
Lines = Sequence[Mapping[str, Any]]


class RunReader:
    """Reads one run folder again and again, each time only what is new.

    The folder may be half-written or missing; `known` is the state of a run that has not begun.
    """

    def __init__(self, path: Path, known: RunState | None = None) -> None:
        self.path = path
        self.known = known or RunState(path, path.parent.name, path.parent.name)
        self._rounds = Rounds(path / "rounds.jsonl")
        self._kept: tuple[object, RunState] | None = None

    def look(self) -> RunState:
        """The state now; RunError if the folder is damaged, or a newer version wrote it."""
        mark = [stamp(self.path / name) for name in {*FILES, *SIGNS}]
        if self._kept is None or self._kept[0] != mark:
            with naming(self.path, "this run folder is damaged", remedy=""):
                self._kept = (mark, self._read())
        return self._aged(self._kept[1])

    def _read(self) -> RunState:
        if not all((self.path / name).exists() for name in FILES):
            return self.known
        config = read_toml(self.path / "config.toml")
        about = read_json(self.path / "environment.json")
        outcome = Ledger(self.path).outcome()
        lines = self._rounds.look()
        if outcome.get("state") != "running":  # all is read: what is shown of it is enough
            self._rounds = Rounds(self.path / "rounds.jsonl")
        fold = config["task"].get("fold", -1)
        means = tuple(_finite((line["validation"] or {}).get("mean")) for line in lines)
        scored = [
            BestRound(int(line["t"]), mean)
            for mean, line in zip(means, lines, strict=True)
            if mean is not None
        ]
        sites = _sites(sorted(about["data"]["cases"]), lines)
        return RunState(
            folder=self.path,
            row=str(config["name"]),
            label=str(config.get("label", config["name"])),
            seed=int(about["seed"]),
            fold=fold if fold >= 0 else None,
            state=str(outcome.get("state", "unknown")),
            error=str(outcome.get("error", "")),
            method=str(config["method"]["name"]),
            metric=str(about["metric"]),
            t=int(lines[-1]["t"]) if lines else 0,
            T=int(config["rounds"]),
            resumed=len(about.get("resumed", [])),
            seconds_a_round=_pace(lines),
            validation=means,
            best=max(scored, key=lambda best: best.score, default=None),  # the first of equals
            learned=max((line["t"] for line in lines if line["learned"]), default=0),
            sites=sites,
            missing=tuple(site.name for site in sites if not site.answered),
            down=sum(line["bytes_down"] for line in lines),
            up=sum(line["bytes_up"] for line in lines),
            calls=_calls(lines),
            log=_tail(self.path / "log.txt"),
        )

    def _aged(self, seen: RunState) -> RunState:
        """Adds what changes without a file: the time, and who holds the lock."""
        if seen.state == "not begun":
            return seen
        last = max(stamp(self.path / name)[0] for name in SIGNS)
        silent = max(0.0, time.time() - last / 1e9)
        if seen.state != "running":
            return replace(seen, silent=silent, lock="free")
        lock = lock_of(self.path)
        if lock == "free" and Ledger(self.path).status() != "running":
            self._kept = None  # it has ended since its files were read
            return self.look()
        left = None
        if seen.seconds_a_round is not None and seen.T is not None:
            left = seen.seconds_a_round * (seen.T - seen.t)
            left -= min(silent, seen.seconds_a_round) if left else 0.0
        return replace(seen, silent=silent, seconds_left=left, lock=lock)


class StudyReader:
    """Reads all runs of a study's folder, with those to come, or of any folder above runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._readers: dict[Path, RunReader] = {}

    def look(self) -> StudyState:
        """The state now; a damaged run does not hide the others."""
        title, jobs = self._jobs()
        for path, known in jobs.items():
            self._readers.setdefault(path, RunReader(path, known))
        return StudyState(self.path, title, tuple(self._look(path) for path in jobs))

    def _look(self, path: Path) -> RunState:
        try:
            return self._readers[path].look()
        except RunError as error:
            return replace(self._readers[path].known, state="damaged", error=str(error))

    def _jobs(self) -> tuple[str, dict[Path, RunState | None]]:
        if not (self.path / STUDY).exists():
            return str(self.path), dict.fromkeys(run_paths([self.path]))
        study = read_json(self.path / STUDY)
        jobs: dict[Path, RunState | None] = {}
        for row in study["runs"]:
            config = row["config"]
            name, label = config["name"], config.get("label", config["name"])
            for fold, seed in row["jobs"]:
                path = run_path(self.path, name, seed, fold)
                jobs[path] = RunState(path, name, label, seed, fold, T=config.get("rounds"))
        return study.get("title", str(self.path)), jobs


Reader = RunReader | StudyReader


def reader(path: Path) -> Reader:
    """A reader for the folder of a run, also one just being made, or of several runs.

    Raises:
        RunError: it is neither.
    """
    if not path.is_dir():
        what = "this is a file" if path.exists() else "no such folder"
        raise RunError(what, where=str(path), remedy="name a run or study folder")
    if any((path / name).exists() for name in (*FILES, "checkpoints")):
        return RunReader(path)
    if not (path / STUDY).exists() and not any(path.rglob("config.toml")):
        raise RunError(
            "neither a run folder nor a study folder",
            where=str(path),
            remedy="name a folder written by `autofedavg run`",
        )
    return StudyReader(path)


def _sites(names: Sequence[str], lines: Lines) -> tuple[SiteState, ...]:
    last = lines[-1] if lines else {}
    answered = last.get("answered") or names  # an empty list: this round had no models of sites
    scores = (last.get("validation") or {}).get("sites") or {}
    local = last.get("validation_local") or {}
    return tuple(
        SiteState(
            name,
            name in answered,
            _spread(last.get("alpha"), k),
            _spread(last.get("beta"), k),
            _finite(scores.get(name)),
            _finite(local.get(name)),
            tuple(_finite(line["loss"].get(name)) for line in lines),
        )
        for k, name in enumerate(names)
    )


def _spread(weights: Sequence[Any] | None, k: int) -> WeightRange | None:
    if not weights:
        return None
    layers = weights[k] if isinstance(weights[k], list) else [weights[k]]
    if not all(map(math.isfinite, layers)):
        return None
    return WeightRange(statistics.fmean(layers), min(layers), max(layers))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _pace(lines: Lines) -> float | None:
    """Seconds a round: the median of the last ones, so that a pause does not count.

    Rounds that learn weights take longer and, with t0 above 1, are few: both kinds have a median
    of their own, weighted by how often they come.
    """
    kinds: dict[bool, list[float]] = {}
    for early, late in pairwise(lines):
        gap = float(late["time"]) - float(early["time"])
        kinds.setdefault(bool(late.get("learned")), []).append(gap)
    if not kinds:
        return None
    total = sum(len(gaps) * statistics.median(gaps[-RECENT:]) for gaps in kinds.values())
    return max(0.0, total / (len(lines) - 1))


def _calls(lines: Lines) -> dict[str, dict[str, float]]:
    """What each kind of request cost, over all rounds."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        for call, cost in line["calls"].items():
            sums[call].update(cost)
    return {call: dict(cost) for call, cost in sums.items()}


def _tail(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    with opened(path) as handle:
        handle.seek(max(0, path.stat().st_size - LOG_BYTES))
        text = handle.read(LOG_BYTES).decode(errors="replace")
    return tuple(text.splitlines()[-LOG_LINES:])
