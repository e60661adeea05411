"""Flower with real processes on loopback: SuperLink, SuperNodes, TLS and keys."""

import subprocess
import sys
import time
import tomllib
from pathlib import Path

import psutil
import pytest

from autofedavg import read_study, run_study
from autofedavg.core.errors import ConfigError
from autofedavg.engines.flower import Loopback
from autofedavg.engines.flower.export import export
from autofedavg.experiment.folder import Ledger
from deployed import assert_same_run, job_of

pytest.importorskip("flwr", reason="needs autofedavg[flower]")


@pytest.fixture
def study(tiny):
    return read_study(tiny, ["rounds=1"], only=["n-dirichlet"])


@pytest.fixture
def alone(tmp_path):
    """No process that a test started through Flower is left when it ends."""
    yield
    until = time.monotonic() + 5
    while left := of_flower(tmp_path):
        assert time.monotonic() < until, [process.cmdline() for process in left]
        time.sleep(0.1)


def of_flower(home: Path, word: str = "") -> list[psutil.Process]:
    """Processes whose Flower lives below a folder, with a word in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            inside = process.environ().get("FLWR_HOME", "").startswith(str(home))
            if inside and process.status() != "zombie" and word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow  # through the command, and in every run of the tests: test_engines.py
@pytest.mark.timeout(1800)
def test_the_same_bits_as_the_simulators(study, tmp_path, alone):
    home = run_study(study, tmp_path / "here")
    job = job_of(study, "n-dirichlet", wait=300.0)
    ticks = []
    with Loopback(job.sites, {}, tmp_path / "runs", tmp_path / "scratch") as flower:
        flower.run(job, lambda: ticks.append(time.monotonic()))
    assert len(ticks) > 10
    assert_same_run(home / "n-dirichlet" / "seed-0", job.folder(tmp_path / "runs"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_client_process_killed_in_a_step_changes_no_bit(study, tmp_path, alone):
    """Flower notices, and the site is asked again."""
    home = run_study(study, tmp_path / "here")
    job = job_of(study, "n-dirichlet", wait=300.0)
    log = job.folder(tmp_path / "runs") / "log.txt"
    killed = []

    def kill_after_sharing() -> None:
        if not killed and log.exists() and "share_models of 3 sites" in log.read_text():
            killed.extend(of_flower(tmp_path, "flwr-clientapp")[:1])
            for process in killed:
                process.kill()

    with Loopback(job.sites, {}, tmp_path / "runs", tmp_path / "scratch") as flower:
        flower.run(job, kill_after_sharing)
    assert killed
    assert_same_run(home / "n-dirichlet" / "seed-0", job.folder(tmp_path / "runs"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("word", ["flwr-serverapp", "flower-superlink", "flower-supernode"])
def test_what_was_killed_mid_run_goes_on_in_a_new_run_with_the_same_bits(
    word, tiny, tmp_path, alone
):
    study = read_study(tiny, ["rounds=2"], only=["n-dirichlet"])
    home = run_study(study, tmp_path / "here")
    job = job_of(study, "n-dirichlet", wait=300.0)
    rounds = job.folder(tmp_path / "runs") / "rounds.jsonl"
    killed = []

    def kill_after_round_one() -> None:
        if not killed and rounds.exists() and rounds.read_text():
            killed.extend(of_flower(tmp_path, word))
            for process in killed:
                process.kill()

    with Loopback(job.sites, {}, tmp_path / "runs", tmp_path / "scratch") as flower:
        flower.run(job, kill_after_round_one)
        assert killed
        assert Ledger(job.folder(tmp_path / "runs")).status() != "finished"
        flower.run(job, lambda: None)
    assert_same_run(home / "n-dirichlet" / "seed-0", job.folder(tmp_path / "runs"))


def test_a_site_that_never_comes_is_said_and_nothing_is_left(study, tmp_path, alone):
    job = job_of(study, "n-dirichlet", wait=8.0)
    with Loopback(["I"], {}, tmp_path / "runs", tmp_path / "scratch") as flower:
        flower.run(job, lambda: None)
    outcome = Ledger(job.folder(tmp_path / "runs")).outcome()
    assert outcome["state"] == "failed"
    assert "did not join within 8 s" in outcome["error"]
    assert "II" in outcome["error"]


def test_nothing_is_left_when_the_caller_is_killed(tmp_path, alone):
    code = (
        "import sys, time; from pathlib import Path; home = Path(sys.argv[1])\n"
        "from autofedavg.engines.flower import Loopback\n"
        "Loopback(['I'], {}, home / 'runs', home / 'scratch'); print('up', flush=True)\n"
        "time.sleep(300)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    ) as caller:
        try:
            assert caller.stdout.readline() == b"up\n"
            limit = time.monotonic() + 60
            while not of_flower(tmp_path, "flower-supernode"):  # it may not have become that yet
                assert time.monotonic() < limit
                time.sleep(0.05)
        finally:
            caller.kill()


def test_an_app_is_settings_only_and_flower_takes_it(tiny, tmp_path):
    job = job_of(read_study(tiny, [f"task.cache={tmp_path / 'canary'}"]), "fedavg", seed=3)
    app = export(job, tmp_path / "app")
    assert sorted(path.name for path in app.iterdir()) == ["README.md", "pyproject.toml"]
    flower = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert flower["config"]["job"] == job.text()
    text = (app / "pyproject.toml").read_text() + (app / "README.md").read_text()
    assert "canary" not in text
    made = subprocess.run(
        [Path(sys.executable).with_name("flwr"), "build", "--app", app],
        cwd=tmp_path,
        env={
            "PATH": "",
            "FLWR_HOME": str(tmp_path / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONPATH": ":".join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert list(tmp_path.glob("autofedavg.afa-fedavg-3.*.fab"))
    with pytest.raises(ConfigError, match="empty folder"):
        export(job, tmp_path / "app")
