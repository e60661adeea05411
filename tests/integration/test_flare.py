"""The same run on NVIDIA FLARE: real processes, mutual TLS, the simulator's bits."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

from tests_tiny import TINY

from autofedavg import read_study
from autofedavg.engines.flare.export import CONTROLLER, EXECUTOR, export
from autofedavg.engines.flare.loopback import Loopback
from deployed import assert_same_run, job_of

SITES = ("I", "II", "III")
POC_PORT = 8002


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


@pytest.mark.slow  # through the command, and in every run of the tests: test_engines.py
def test_the_simulators_bits(flare, study, tiny_trained):
    ticks = []
    flare.run(job_of(study, "n-dirichlet"), lambda: ticks.append(1))
    assert_same_run(tiny_trained / "n-dirichlet" / "seed-0", flare.runs / "tiny/n-dirichlet/seed-0")
    assert len(ticks) > 10


@pytest.mark.slow
def test_an_exported_job_runs_under_flares_own_simulator(study, tiny_trained, tmp_path):
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
    assert_same_run(tiny_trained / "n-dirichlet" / "seed-0", made[0].parent)


@pytest.mark.slow
def test_a_run_that_fails_fails_the_job_and_says_why(flare, study):
    job = replace(job_of(study, "fedavg"), network="of another shape")
    folder = export(job, flare.scratch / "failing")
    assert flare.run_folder(folder, lambda: None) == "FINISHED:EXECUTION_EXCEPTION"
    said = (flare.scratch / "server.log").read_text()
    assert "job tiny/fedavg: the server's network has another shape than the job's; install" in said


@pytest.mark.slow
def test_a_site_that_is_killed_while_the_others_join_is_named_within_seconds(flare, study):
    folder = export(job_of(study, "fedavg", seed=7, wait=20.0), flare.scratch / "killed")
    log = flare.scratch / "server.log"
    start, at = log.stat().st_size, {}

    def said(words: str) -> bool:
        return words in log.read_bytes()[start:].decode(errors="replace")

    def worker(site: str) -> list[psutil.Process]:
        return psutil.Process(flare.pid(site)).children()

    def tick() -> None:
        if not at and said("waiting for I, II, III") and worker("III"):
            at["waiting"] = time.monotonic()
        if "killed" not in at and "waiting" in at and time.monotonic() > at["waiting"] + 3:
            worker("III")[0].suspend()  # so that the server goes on waiting
            at["killed"] = time.monotonic()
            for process in [*worker("II"), psutil.Process(flare.pid("II"))]:
                process.kill()
        if "named" not in at and said("site II joined, then disconnected"):
            at["named"] = time.monotonic()

    try:
        status = flare.run_folder(folder, tick)
    finally:
        for process in worker("III"):
            process.kill()
    assert at["named"] - at["killed"] < 6
    assert status.startswith("FINISHED")
    assert status != "FINISHED:COMPLETED"


@pytest.mark.slow
def test_an_exported_job_runs_in_flares_poc_mode(study, tiny_trained, tmp_path):
    with socket.socket() as door:
        if not door.connect_ex(("127.0.0.1", POC_PORT)):
            pytest.skip(f"port {POC_PORT}, which FLARE's POC mode wants, is taken")
    job = export(job_of(study, "n-dirichlet"), tmp_path / "job")
    here = {**os.environ, "HOME": str(tmp_path), "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc")}
    here["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{here['PATH']}"

    def nvflare(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "nvflare.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=200,
            env=here,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    nvflare("poc", "prepare", "-c", *SITES, "--force")
    (kits,) = (tmp_path / "poc").glob("*/prod_00")
    admin = ("--startup-kit", kits / "admin@nvidia.com")
    for kit in ("server", *SITES):
        path = kits / kit / "local" / "resources.json"
        resources = json.loads(path.with_suffix(".json.default").read_text())
        resources["class_allow_list"] += [CONTROLLER, EXECUTOR]
        path.write_text(json.dumps(resources))
    try:
        nvflare("poc", "start", "-ex", "admin@nvidia.com")
        number = json.loads(nvflare("--format", "json", "job", "submit", "-j", job, *admin))[
            "data"
        ]["job_id"]
        nvflare("job", "wait", number, *admin)
    finally:
        nvflare("poc", "stop")
    made = kits / "server" / "autofedavg-runs" / "tiny" / "n-dirichlet" / "seed-0"
    assert_same_run(tiny_trained / "n-dirichlet" / "seed-0", made)
