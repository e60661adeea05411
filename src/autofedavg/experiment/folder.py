"""The run folder as it is read: enough to redo, resume and report a run.

runs/<study>/<row>/seed-<n>/
    config.toml        every setting; comments repeat the origins
    origins.json       where the value of each setting comes from
    environment.json   versions, commit, device, threads, data
    rounds.jsonl       one line a round
    scores.csv         model, site, split, case, metric, value; without cases where sites
                       disclosed means: model, site, split, metric, value, cases
    ceiling.json       what other weights could have gained; only where it was asked for
    checkpoints/       last-<t>, best-global@<t>, best-local-<site>@<t>: .safetensors, .json
    log.txt, status.json

Holds no lock, writes nothing and imports nothing heavy: it can be read while a run goes on.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.core.scores import Scores
from autofedavg.experiment.archive_reader import SUFFIX, as_folder
from autofedavg.experiment.files import (
    LARGE,
    REMEDY,
    content_of,
    naming,
    opened,
    settings_in,
    unpacked,
    values_in,
)
from autofedavg.experiment.folder_schema import HUGE, check
from autofedavg.experiment.lock import lock_of

SCHEMA = 1
STUDY, ORIGINS, CEILING = "study.json", "origins.json", "ceiling.json"
LOADERS = "loaders"  # the task of a run that `federate` began
SCORES, SCORES_PACKED = "scores.csv", "scores.csv.gz"  # the second in archives of 0.1
PARTIAL = ".part"  # ends the name of a folder that was being copied
DIGEST = "scores_sha256"  # in status.json of a finished run; earlier folders have none
NAME_ONE = "name a run folder, a study folder or an archive"


class Ledger:
    """What a run has written so far."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def status(self) -> str:
        return str(self.outcome().get("state", "unknown"))

    def seen_status(self) -> str:
        """The state; "killed" where the folder says `running` and no process works in it."""
        state = self.status()
        if state == "running" and lock_of(self.path) == "free":
            state = self.status()  # it may have ended since
            return "killed" if state == "running" else state
        return state

    @property
    def finished(self) -> bool:
        """Whether the run is over; one that was not begun is not."""
        return (self.path / "status.json").exists() and self.status() == "finished"

    def outcome(self) -> dict[str, Any]:
        """status.json: the state, and the error of a run that failed.

        Raises:
            RunError: it is missing, damaged, or a newer version wrote it.
        """
        content = read_json(self.path / "status.json")
        refuse_newer(content, self.path)
        return content

    def rounds(self, T: int | None = None) -> list[dict[str, Any]]:
        """The rounds so far; a last line cut off by a crash is left out.

        Args:
            T: the rounds that a finished run has; any number will do when None.

        Raises:
            RunError: a line is damaged, or the run is finished and has other rounds than 1 to T.
        """
        over = T is not None and self.finished  # asked first: the run may end while we read
        path = self.path / "rounds.jsonl"
        lines = Rounds(path).look()
        there = [line["t"] for line in lines]
        if over and (len(there) != T or any(t != n for n, t in enumerate(there, 1))):
            raise RunError(
                f"the run finished with rounds 1 to {T}, and this file has {len(there)}",
                where=str(path),
                remedy=REMEDY,
            )
        return lines

    def ceiling(self) -> dict[str, Any] | None:
        """What other weights could have gained; None where nobody has asked.

        Raises:
            RunError: it is damaged, or a newer version wrote it.
        """
        path = self.path / CEILING
        if not path.exists():
            return None
        content = read_json(path)
        refuse_newer(content, self.path)
        return content

    def scores(self) -> Scores:
        """The test scores; none as long as nothing was tested.

        Raises:
            RunError: they are damaged, or not those that the finished run wrote.
        """
        written = self._digest()
        plain, packed = self.path / SCORES, self.path / SCORES_PACKED
        path = packed if packed.exists() and not plain.exists() else plain
        if not path.exists() and not written:
            return Scores()
        with naming(path):
            content = content_of(path, LARGE)
            content = content if path == plain else unpacked(content)
            lines = csv.reader(io.StringIO(content.decode(), newline=""))
            scores = Scores.from_lines(next(lines, []), lines)
            for _, column in scores.columns():
                for case, value in zip(*column, strict=True):
                    if not -HUGE <= value <= HUGE:
                        raise ValueError(f"the score of {case} is not finite, or too large")
            for tested, (mean, *others) in scores.means():
                if others or not -HUGE <= mean.value <= HUGE or mean.cases < 1:
                    told = f"{tested.metric} of {tested.site} by {tested.model}"
                    raise ValueError(f"{told} is there twice, not finite, or of no case")
            # Cut off at the end of a line, it still reads as scores, and tables would be of a part.
            if written and hashlib.sha256(content).hexdigest() != written:
                raise ValueError("its contents do not match the hash in status.json")
            return scores

    def _digest(self) -> str:
        """The SHA-256 of scores.csv, as the run wrote it when it finished; "" if it did not."""
        outcome = self.outcome() if (self.path / "status.json").exists() else {}
        return str(outcome.get(DIGEST, "")) if outcome.get("state") == "finished" else ""


class Rounds:
    """The rounds of a running run; rounds.jsonl need not exist. Looks parse only what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[dict[str, Any]] = []
        self._end, self._last = 0, b""

    def look(self) -> list[dict[str, Any]]:
        """The rounds so far; a line that is not whole yet is left for later.

        Raises:
            RunError: a line is damaged, or a newer version wrote it.
        """
        if not self.path.exists():
            self._forget()
            return []
        with naming(self.path), opened(self.path) as handle:
            handle.seek(self._end - len(self._last))
            if handle.read(len(self._last)) != self._last:  # resumed: the file was replaced
                self._forget()
                handle.seek(0)
            if os.fstat(handle.fileno()).st_size > LARGE:
                raise ValueError("it is too large")
            fresh = handle.read().split(b"\n")[:-1]
        self._lines = [*self._lines, *map(self._parsed, fresh)]
        self._end += sum(len(line) + 1 for line in fresh)
        self._last = fresh[-1] + b"\n" if fresh else self._last
        return self._lines

    def _forget(self) -> None:
        self._lines, self._end, self._last = [], 0, b""

    def _parsed(self, line: bytes) -> dict[str, Any]:
        with naming(self.path, "a line is damaged"):
            content = values_in(line)
            check(content, "rounds.jsonl")
        refuse_newer(content, self.path)
        return content


def run_path(home: Path, row: str, seed: int, fold: int | None = None) -> Path:
    """Where a study's folder has the run of a row."""
    place = home / row if fold is None else home / row / f"fold-{fold}"
    return place / f"seed-{seed}"


def study_home(run: Path) -> Path | None:
    """The folder of the study that a run lies in: above its row, or above its row and fold."""
    return next((up for up in run.resolve().parents[1:3] if (up / STUDY).exists()), None)


def in_order(rows: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """A study's rows in the order of these names; others come last, as they came."""
    known = [rows[name] for name in names if name in rows]
    return known + [row for name, row in rows.items() if name not in names]


def run_paths(paths: Iterable[Path], remedy: str = NAME_ONE) -> list[Path]:
    """Run folders at or below the given paths, in order of their names.

    Args:
        paths: run folders, archives, paths in archives, or folders above any of these.
        remedy: what to name instead of a path without a run.

    Raises:
        RunError: there is no run, or an archive cannot be read.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        here = as_folder(path)
        if not here.exists():
            raise RunError("no such folder", where=str(path), remedy=remedy)
        # A folder that `archive` of version 0.1 left when it was killed is not a run.
        below = (config.parent for config in here.rglob("config.toml"))
        runs = sorted(run for run in below if run.suffix != PARTIAL)
        if not runs and here.is_dir():
            runs = [run for at in sorted(here.glob(f"*{SUFFIX}")) for run in run_paths([at])]
        if not runs:
            raise RunError("no run in this folder", where=str(path), remedy=remedy)
        for folder in runs:  # a path may be named twice, or below another one
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def refuse_newer(content: dict[str, Any], path: Path) -> None:
    """What a newer version has written may mean something else."""
    if content.get("schema", SCHEMA) > SCHEMA:
        raise RunError(
            f"the folder was written by a newer version (schema {content['schema']})",
            where=str(path),
            remedy="update autofedavg",
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder.

    Raises:
        RunError: it is missing or damaged.
    """
    with naming(path):
        content = values_in(content_of(path))
        check(content, path.name)
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file of a run folder, as `read_config` reads it."""
    return read_config(path)[0]


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """The values of a TOML file of a run folder, and its text.

    Raises:
        RunError: it is missing or damaged.
    """
    with naming(path):
        text = content_of(path).decode()
        content = settings_in(text)
        check(content, path.name)
    return content, text
