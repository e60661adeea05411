"""A site's privacy ledger on disk, its limit, and the key of its noise.

The ledger is a file of lines, one release each, that is only appended to. A line is on the disk
before its release is computed. A process that is killed while it writes leaves part of a line: no
answer had been computed for it, so the next process cuts it off.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch

from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.noise import NoiseKey
from autofedavg.core.problem import LocalData
from autofedavg.core.seeds import Seeds
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.policy import Refused
from autofedavg.engines.remote.site_files import SitePrivacy, SiteState
from autofedavg.experiment.files import sync_folder
from autofedavg.federation.ledger import Entry, Ledger, Limit
from autofedavg.federation.private_steps import PrivateSteps
from autofedavg.federation.spending import WEIGHING

LEDGER = "privacy.jsonl"


class FileLedger(Ledger):
    """A ledger that outlives its process; processes of one site may share it.

    Args:
        path: the file, in a folder that only this user can read.
        limit: what the site allows.

    Raises:
        ConfigError: it cannot be read or written.
    """

    def __init__(self, path: Path, limit: Limit) -> None:
        super().__init__(limit)
        self._path = path
        self._read = 0  # bytes that are known
        self._file: BinaryIO | None = None
        with self._held():
            pass

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Holds the file, and reads what other processes have added."""
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "r+b", buffering=0) as self._file:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                self._refresh(self._file)
                yield
        except OSError as error:
            raise ConfigError(
                f"the privacy ledger cannot be written ({error.strerror or error})",
                where=str(self._path),
                remedy="make room, or make it writable: without it nothing is released",
            ) from error

    def _refresh(self, file: BinaryIO) -> None:
        file.seek(self._read)
        *lines, rest = file.read().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                self._add(Entry.read(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise ConfigError(
                    f"line {number} after byte {self._read} is damaged ({error})",
                    where=str(self._path),
                    remedy="restore the file: what was released cannot be taken back",
                ) from error
        self._read = file.tell() - len(rest)
        if rest:
            file.truncate(self._read)

    def _keep(self, entry: Entry) -> None:
        if self._file is None:  # pragma: no cover - only within `_held`
            raise RuntimeError("the ledger is not held")
        line = json.dumps(entry._asdict()).encode() + b"\n"
        self._file.seek(self._read)
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
            if not self._read:
                sync_folder(self._path.parent)
        except OSError:
            self._file.truncate(self._read)  # or the same request would find it, and be answered
            raise
        self._read = self._file.tell()


def site_privacy(
    job: Job,
    site: str,
    allowed: SitePrivacy,
    state: SiteState,
    data: LocalData,
    layout: Layout,
    machine: str,
) -> PrivateSteps | None:
    """The private steps of a site for a job; None where nothing of it is noisy.

    Args:
        job: the job.
        site: its name.
        allowed: the site's limit.
        state: where the secret and the ledger are.
        data: the site's.
        layout: of the network.
        machine: what else determines the bits of an answer: data, device, threads, versions.

    Raises:
        Refused: the site has a limit, and the job would release something without noise, or more
            than is left; or the job would spend more than it says itself.
    """
    privacy = job.row.privacy
    if allowed.epsilon:
        lacking = [] if privacy.train or allowed.covers == "weights" else ["train_noise"]
        calls = job.row.method.calls(job.row.T, layout)
        learns = any(calls[call] for call in WEIGHING)
        lacking += ["theta_noise"] if learns and not privacy.theta else []
        if lacking:
            raise Refused(
                f"its privacy limit is epsilon = {allowed.epsilon:g}, and this job has no "
                + " and no ".join(f"privacy.{name}" for name in lacking)
            )
    if not privacy.on:
        return None
    try:
        budget = job.row.budgets(layout, {site: data})[site]
    except (ConfigError, DataError) as error:
        raise Refused(str(error)) from error
    name = hashlib.sha256(f"{job.text()}\n{machine}\n{torch.__version__}".encode()).hexdigest()[:16]
    key = NoiseKey(bytes.fromhex(state.salted("noise of differential privacy")))
    ledger = FileLedger(state.folder / LEDGER, allowed.limit())
    needed = ledger.forecast(name, budget.account)
    if 0 < allowed.epsilon < needed:
        raise Refused(
            f"its privacy limit is epsilon = {allowed.epsilon:g} at delta = {allowed.delta:g}, and "
            f"with this job it would have spent {needed:.4g}: raise the noise, use fewer rounds or "
            "steps, or ask the site for a higher limit"
        )
    return PrivateSteps(
        site,
        data,
        Seeds(job.seed),
        privacy,
        job.row.training.batch_size,
        key,
        ledger,
        name,
    )
