"""Jobs for real engines, in tests: a tiny job, sites in this process, a comparison of runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.site_service import SiteService
from autofedavg.experiment.config import Study
from autofedavg.experiment.folder import Ledger
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.serialization import decode, encode

VARIANTS = [
    (constraint, weights)
    for constraint in ("dirichlet", "softmax")
    for weights in ("network", "layer")
]


def job_of(study: Study, row: str, seed: int = 0, **how) -> Job:
    """The job of one row of a study."""
    config = next(run for run in study.runs if run.name == row).resolved()
    sites = config.task.site_names()
    return Job.of(study.name, config, seed, sites, **{"threads": 1, "wait": 60.0, **how})


class InProcessTransport:
    """Every site's service in this process; messages travel as bytes."""

    name = "in-process"

    def __init__(
        self,
        job: Job,
        files: Mapping[str, Path] | None = None,
        spoil: Callable[
            [str, str, Message | NoReply], Message | NoReply
        ] = lambda _verb, _site, answer: answer,
    ) -> None:
        self.services = {s: SiteService(job.text(), s, (files or {}).get(s)) for s in job.sites}
        self.sent: list[bytes] = []
        self.spoil = spoil

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        return {
            site: self.spoil(verb, site, self._one(verb, site, message))
            for site, message in messages.items()
        }

    def _one(self, verb: str, site: str, message: Message) -> Message:
        self.sent.append(encode(self.services[site].answer(verb, decode(encode(message)))))
        return decode(self.sent[-1])

    def waiting(self) -> set[str]:
        return set()

    def present(self) -> set[str] | None:
        return set(self.services)


def assert_same_run(one: Path, other: Path) -> None:
    """Beta, alpha, losses, validation, w and scores of two runs are the same, bit for bit."""
    mine, theirs = Ledger(one), Ledger(other)
    assert mine.status() == theirs.status() == "finished", theirs.outcome()
    kept = ("t", "alpha", "beta", "learned", "loss", "validation", "validation_local", "answered")
    lines, same = mine.rounds(), theirs.rounds()
    assert [{k: line[k] for k in kept} for line in lines] == [{k: s[k] for k in kept} for s in same]
    own = [[line.get("validation_personal") for line in each] for each in (lines, same)]
    assert own[0] == own[1]
    assert mine.scores() == theirs.scores()
    assert mine.scores()
    names = _models(one)
    assert names == _models(other)
    for name in names:
        a, b = load_file(one / "checkpoints" / name), load_file(other / "checkpoints" / name)
        a = {key: a[key] for key in a if not key.startswith("kept.")}
        assert a.keys() == {key for key in b if not key.startswith("kept.")}
        # Bytes, not numbers: a method's memory may hold nan for what it has not seen yet.
        assert all(torch.equal(_bytes(a[key]), _bytes(b[key])) for key in a), name


def _bytes(array: torch.Tensor) -> torch.Tensor:
    return array.contiguous().reshape(-1).view(torch.uint8)


def _models(run: Path) -> list[str]:
    """The models of a run but for personal ones, which stay at the sites on a real engine."""
    names = (path.name for path in (run / "checkpoints").glob("*.safetensors"))
    return sorted(name for name in names if "-personal-" not in name)


def environment_of(path: Path) -> dict:
    return json.loads((path / "environment.json").read_text())


def left_behind(mark: str) -> list[list[str]]:
    """Command lines of processes whose environment or command line has the mark in it."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *map("=".join, process.environ().items())]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(mark in word for word in words):
            found.append(process.cmdline())
    return found


def nothing_left(mark: str) -> None:
    """No such process is there any more, or will be within seconds."""
    until = time.monotonic() + 15
    while found := left_behind(mark):
        assert time.monotonic() < until, found
        time.sleep(0.2)
