"""Flower with real processes on loopback: SuperLink, SuperNodes, TLS and keys."""

import time
from pathlib import Path

import psutil
import pytest

from autofedavg import read_study, run_study
from autofedavg.engines.flower import Loopback
from deployed import assert_same_run, job_of

pytest.importorskip("flwr", reason="needs autofedavg[flower]")


@pytest.fixture
def study(tiny):
    return read_study(tiny, ["rounds=1"], only=["n-dirichlet"])


@pytest.fixture
def alone():
    """No process that a test starts outlives it."""
    before = set(psutil.pids())
    yield
    until = time.monotonic() + 10
    while left := [p for p in mine() if p.pid not in before]:
        assert time.monotonic() < until, [p.cmdline() for p in left]
        time.sleep(0.1)


def mine() -> list[psutil.Process]:
    """Processes of Flower and of our package, started from here or left behind by such."""
    here = set(psutil.Process().children(recursive=True))
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            orphan = process.ppid() == 1 and ("flower" in words or "flwr" in words)
        except psutil.Error:
            continue
        if process in here or (orphan and "autofedavg" in str(process.environ())):
            found.append(process)
    return found


@pytest.mark.timeout(600)
def test_the_same_bits_as_the_simulators(study, tmp_path, alone):
    home = run_study(study, tmp_path / "here")
    job = job_of(study, "n-dirichlet")
    ticks = []
    with Loopback(job.sites, {}, tmp_path / "runs", tmp_path / "scratch") as flower:
        flower.run(job, lambda: ticks.append(time.monotonic()))
    assert len(ticks) > 10
    assert_same_run(home / "n-dirichlet" / "seed-0", job.folder(tmp_path / "runs"))
