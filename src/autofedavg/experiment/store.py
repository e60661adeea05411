"""The run folder as it is written, with its checkpoints: no pickles, nothing half-written.

What is in it and how the rest is read: `ledger`.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from autofedavg.errors import RunError
from autofedavg.experiment.ledger import SCHEMA, Ledger, read_json, run_paths
from autofedavg.scores import ScoreRow

KEPT = 2  # checkpoints of the last rounds: the newest, and one to fall back to
log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """Tensors and plain values, as written."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class RunFolder(Ledger):
    """One run on disk, to be written."""

    @classmethod
    def create(cls, path: Path, config: str, environment: Mapping[str, Any]) -> RunFolder:
        """Makes a new run folder.

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
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            folder = cls(path)
            write_atomically(path / "environment.json", _json(environment))
            write_atomically(path / "config.toml", config.encode())
            folder.set_status("running")
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the folder, so that no two processes write it."""
        with (self.path / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    "another process is working in this run folder",
                    where=str(self.path),
                    remedy="wait for it, or stop it",
                ) from None
            yield

    def note_resumption(self, environment: Mapping[str, Any]) -> None:
        """Notes on what, and after which round, the run goes on."""
        path = self.path / "environment.json"
        about = read_json(path)
        saved = self._saved_rounds()
        entry = {"after_round": saved[-1] if saved else 0, **environment}
        about["resumed"] = [*about.get("resumed", []), entry]
        with disk_errors(self.path):
            write_atomically(path, _json(about))

    def set_status(self, state: str, error: str = "", kind: str = "") -> None:
        why = {"error": error, "kind": kind} if error else {}
        content = {"schema": SCHEMA, "state": state, **why}
        write_atomically(self.path / "status.json", _json(content))

    def append_round(self, line: Mapping[str, Any]) -> None:
        with (self.path / "rounds.jsonl").open("ab") as handle:
            handle.write(json.dumps({"schema": SCHEMA, **line}).encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())

    def keep_rounds(self, last: int) -> None:
        """Drops the lines of rounds after `last`: they are run again."""
        kept = [line for line in self.rounds() if line["t"] <= last]
        content = b"".join(json.dumps(line).encode() + b"\n" for line in kept)
        write_atomically(self.path / "rounds.jsonl", content)

    def save(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Writes a checkpoint; the JSON goes last and vouches for the tensors by their hash."""
        content = save({key: tensor.cpu().contiguous() for key, tensor in tensors.items()})
        stem = self.path / "checkpoints" / name
        write_atomically(stem.with_name(f"{name}.safetensors"), content)
        digest = hashlib.sha256(content).hexdigest()
        write_atomically(stem.with_name(f"{name}.json"), _json({**facts, "sha256": digest}))

    def load(self, name: str) -> Checkpoint:
        """Reads a checkpoint.

        Raises:
            RunError: it is missing or damaged.
        """
        stem = self.path / "checkpoints" / name
        try:
            facts = json.loads(stem.with_name(f"{name}.json").read_bytes())
            content = stem.with_name(f"{name}.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != facts["sha256"]:
                raise ValueError("its contents do not match their hash")
            return Checkpoint(load(content), facts)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise RunError(
                f"this checkpoint cannot be read ({error})",
                where=str(stem),
                remedy="delete the folder's checkpoints and resume: all rounds are run again",
            ) from error

    def has(self, name: str) -> bool:
        """Whether there is a checkpoint of this name."""
        return (self.path / "checkpoints" / f"{name}.json").exists()

    def save_round(self, t: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Writes the checkpoint of round t and drops those no longer needed."""
        self.save(f"last-{t}", tensors, {**facts, "t": t})
        for old in self._saved_rounds()[:-KEPT]:
            for ending in ("json", "safetensors"):
                (self.path / "checkpoints" / f"last-{old}.{ending}").unlink(missing_ok=True)

    def load_round(self) -> Checkpoint | None:
        """The newest checkpoint that can be read; damaged ones are named in the log."""
        for t in reversed(self._saved_rounds()):
            try:
                return self.load(f"last-{t}")
            except RunError as error:
                log.warning("%s: using the checkpoint before it", error)
        return None

    def _saved_rounds(self) -> list[int]:
        names = [path.stem for path in (self.path / "checkpoints").glob("last-*.json")]
        return sorted(int(name.removeprefix("last-")) for name in names)

    def write_scores(self, rows: Iterable[ScoreRow]) -> None:
        partial = self.path / "scores.csv.part"
        with partial.open("w", newline="", encoding="utf-8") as handle:
            table = csv.writer(handle)
            table.writerow(ScoreRow._fields)
            table.writerows([*row[:-1], repr(row.value)] for row in rows)
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(self.path / "scores.csv")


def find_runs(paths: Iterable[Path]) -> list[RunFolder]:
    """Run folders at or below the given paths, in order of their names."""
    return [RunFolder(path) for path in run_paths(paths)]


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader, or a crash, meets the old one or the new one, whole."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(
    path: Path, then: str = "`autofedavg resume`: the last checkpoint is whole"
) -> Iterator[None]:
    """Turns a full or read-only disk into an error that says what to do, and then `then`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        first = "make room" if full else "make it writable"
        raise RunError(
            f"cannot write: {error.strerror}",
            where=str(error.filename or path),
            remedy=f"{first}, then {then}",
        ) from error


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"
