"""The run folder as it is written, with its checkpoints: no pickles, nothing half-written.

`folder` lists what is in it and reads it. Models that may be tested have files by their round, and
the checkpoint of a round says which of them hold (`checkpoint_names`, decision 47).
"""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import io
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from autofedavg.core.errors import RunError
from autofedavg.core.scores import MeanRow, ScoreRow
from autofedavg.experiment.checkpoint_names import CheckpointNames
from autofedavg.experiment.files import (
    FULL,
    LARGE,
    TENSORS,
    content_of,
    make_folder,
    naming,
    opened_here,
    replacing,
    sweep,
    values_in,
)
from autofedavg.experiment.folder import (
    CEILING,
    DIGEST,
    ORIGINS,
    SCHEMA,
    SCORES,
    Ledger,
    read_json,
)

TRIES = 10  # to take a folder's lock
KEPT = 2  # checkpoints of the last rounds: the newest, and one to fall back to
ALL_ROUNDS = "delete the folder's checkpoints and resume: all rounds are run again"
ANEW = (
    "a finished run is not run again by resume: put back a copy of the file, or run this row "
    "again with another --out"
)
log = logging.getLogger(__name__)


class Busy(RunError):
    """Another process works in a folder."""


class Checkpoint(NamedTuple):
    """Tensors and plain values, as written, and the name of their files."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    name: str


class RunFolder(Ledger):
    """One run on disk, to be written."""

    @property
    def checkpoints(self) -> CheckpointNames:
        """Its checkpoints, by name."""
        return CheckpointNames(self.path / "checkpoints")

    @classmethod
    def create(
        cls,
        path: Path,
        config: str,
        environment: Mapping[str, Any],
        origins: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """Makes a new run folder; `config` is TOML, and `origins` go by the dotted path.

        Raises:
            RunError: the folder exists already.
        """
        if (path / "config.toml").exists():
            raise RunError(
                "this run folder exists already",
                where=str(path),
                remedy=f"go on with `autofedavg resume {path}`, or write elsewhere with --out",
            )
        with disk_errors(path):
            make_folder(path / "checkpoints")
            folder = cls(path)
            write_atomically(path / "environment.json", _json(environment))
            if origins:
                write_atomically(path / ORIGINS, _json({"schema": SCHEMA, "origins": origins}))
            write_atomically(path / "config.toml", config.encode())
            folder.set_status("running")
        return folder

    @contextmanager
    def lock(self, work: str = "working in this run folder") -> Iterator[None]:
        """Holds the folder, so that no two processes write it.

        Raises:
            Busy: another process holds it, for this work.
        """
        with os.fdopen(opened_here(self.path / ".lock", os.O_RDWR), "r+b") as handle:
            for left in reversed(range(TRIES)):  # `watch` holds it for microseconds when it looks
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if not left:
                        raise Busy(
                            f"another process is {work}",
                            where=str(self.path),
                            remedy="wait for it, or stop it",
                        ) from error
                    time.sleep(0.02)
            for folder in (self.path, self.path / "checkpoints"):
                sweep(folder)
            yield

    def note_resumption(self, environment: Mapping[str, Any]) -> None:
        """Notes on what, and after which round, the run goes on."""
        path = self.path / "environment.json"
        about = read_json(path)
        saved = self.checkpoints.rounds()
        entry = {"after_round": saved[-1] if saved else 0, **environment}
        about["resumed"] = [*about.get("resumed", []), entry]
        with disk_errors(self.path):
            write_atomically(path, _json(about))

    def set_status(self, state: str, error: str = "", kind: str = "") -> None:
        """Writes status.json; that of a finished run vouches for scores.csv by its hash."""
        about = {"error": error, "kind": kind} if error else {}
        scores = self.path / SCORES
        if state == "finished" and scores.is_file():
            with naming(scores):
                about[DIGEST] = hashlib.sha256(content_of(scores, LARGE)).hexdigest()
        content = {"schema": SCHEMA, "state": state, **about}
        write_atomically(self.path / "status.json", _json(content))

    def append_round(self, line: Mapping[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_APPEND
        with os.fdopen(opened_here(self.path / "rounds.jsonl", flags), "ab") as handle:
            handle.write(json.dumps({"schema": SCHEMA, **line}).encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())

    def add_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Adds who was missing in the final test to the events of the last round."""
        if not events:
            return
        *before, last = self.rounds()
        last["events"] = [*last.get("events", []), *events]
        self._rewrite_rounds([*before, last])

    def keep_rounds(self, last: int) -> None:
        """Drops the lines of rounds after `last`: they are run again."""
        self._rewrite_rounds([line for line in self.rounds() if line["t"] <= last])

    def _rewrite_rounds(self, lines: Iterable[Mapping[str, Any]]) -> None:
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        write_atomically(self.path / "rounds.jsonl", content)

    def save(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Writes a checkpoint; the JSON goes last and vouches for the tensors by their hash."""
        content = save({key: tensor.cpu().contiguous() for key, tensor in tensors.items()})
        stem = self.path / "checkpoints" / name
        write_atomically(stem.with_name(f"{name}.safetensors"), content)
        digest = hashlib.sha256(content).hexdigest()
        write_atomically(stem.with_name(f"{name}.json"), _json({**facts, "sha256": digest}))

    def load(self, name: str) -> Checkpoint:
        """Reads a checkpoint; one of a model also by its name without the round.

        Raises:
            RunError: it is missing or damaged.
        """
        name = self.checkpoints.written(name)
        stem = self.path / "checkpoints" / name
        remedy = ANEW if self.finished else ALL_ROUNDS
        with naming(stem, "this checkpoint cannot be read", remedy):
            facts = values_in(content_of(stem.with_name(f"{name}.json")))
            content = content_of(stem.with_name(f"{name}.safetensors"), TENSORS)
            if hashlib.sha256(content).hexdigest() != facts["sha256"]:
                raise ValueError("its contents do not match their hash")
            try:
                return Checkpoint(load(content), facts, name)
            except SafetensorError as error:
                raise ValueError(str(error)) from error

    def has(self, name: str) -> bool:
        """Whether there is a checkpoint of this name; of a model, also without the round."""
        return self.checkpoints.vouched(self.checkpoints.written(name))

    def save_round(self, t: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Writes the checkpoint of round t and drops those no longer needed."""
        self.save(f"last-{t}", tensors, {**facts, "t": t})
        self.tidy()

    def tidy(self) -> None:
        """Drops checkpoints of rounds before the last ones, and models that none of these name."""
        for name in self.checkpoints.useless(KEPT):
            for ending in ("json", "safetensors"):
                (self.path / "checkpoints" / f"{name}.{ending}").unlink(missing_ok=True)

    def load_round(self) -> Checkpoint | None:
        """The newest checkpoint that can be read; damaged ones are named in the log."""
        for t in reversed(self.checkpoints.rounds()):
            try:
                return self.load(f"last-{t}")
            except RunError as error:
                log.warning("%s: using the checkpoint before it", error)
        return None

    def write_ceiling(self, content: Mapping[str, Any]) -> None:
        write_atomically(self.path / CEILING, _json({"schema": SCHEMA, **content}))

    def write_scores(self, rows: Iterable[ScoreRow | MeanRow]) -> None:
        """Writes scores.csv: of every case, or of every site where sites disclosed means."""
        lines = list(rows)
        means = bool(lines) and isinstance(lines[0], MeanRow)
        with replacing(self.path / SCORES) as handle:
            text = io.TextIOWrapper(handle, encoding="utf-8", newline="")
            table = csv.writer(text)
            table.writerow(MeanRow._fields if means else ScoreRow._fields)
            table.writerows(lines)  # numbers to the last bit
            text.detach()


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader, or a crash, meets the old one or the new one, whole."""
    with replacing(path) as handle:
        handle.write(content)


@contextmanager
def disk_errors(
    path: Path,
    then: str = "`autofedavg resume`: the last checkpoint is whole",
    *,
    every: bool = False,
) -> Iterator[None]:
    """Turns a full or read-only disk into an error that says what to do, and then `then`.

    With `every`, any other error of the operating system too: for code that only writes.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in FULL
        if not (full or every or error.errno in (errno.EROFS, errno.EACCES)):
            raise
        first = "make room" if full else "make it writable"
        raise RunError(
            f"cannot write: {error.strerror or error}",
            where=str(error.filename or path),
            remedy=f"{first}, then {then}",
        ) from error


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"
