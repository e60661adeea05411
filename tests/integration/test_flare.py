"""The same run on NVIDIA FLARE: real processes, mutual TLS, the simulator's bits."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

from tests_tiny import TINY

from autofedavg import read_study
from autofedavg.engines.flare import Loopback
from autofedavg.engines.flare.export import CONTROLLER, EXECUTOR, export
from deployed import assert_same_run, job_of

SITES = ("I", "II", "III")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "tiny.toml"
    path.write_text(TINY)
    return read_study(path)


@pytest.fixture(scope="module")
def flare(tmp_path_factory):
    """A running federation, and where its server writes."""
    home = tmp_path_factory.mktemp("flare")
    with Loopback(SITES, {}, home / "runs", home / "scratch") as running:
        yield running


def test_the_simulators_bits(flare, study, tiny_home):
    ticks = []
    flare.run(job_of(study, "n-dirichlet"), lambda: ticks.append(1))
    assert_same_run(tiny_home / "n-dirichlet" / "seed-0", flare.runs / "tiny/n-dirichlet/seed-0")
    assert len(ticks) > 10


@pytest.mark.slow
def test_an_exported_job_runs_under_flares_own_simulator(study, tiny_home, tmp_path):
    job = export(job_of(study, "n-dirichlet"), tmp_path / "job")
    allowed = {"class_allow_list": [CONTROLLER, EXECUTOR]}
    (tmp_path / "w" / "local").mkdir(parents=True)
    (tmp_path / "w" / "local" / "resources.json").write_text(json.dumps(allowed))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "nvflare.cli", "simulator", str(job)),
            *("-w", str(tmp_path / "w"), "-c", ",".join(SITES), "-t", "3"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    made = list((tmp_path / "w").rglob("seed-0/status.json"))
    assert made, done.stdout[-4000:] + done.stderr[-4000:]
    assert_same_run(tiny_home / "n-dirichlet" / "seed-0", made[0].parent)
