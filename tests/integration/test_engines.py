"""The same study on every engine, through the command: the same bits, and nothing left behind."""

import signal
import time
from pathlib import Path

import pytest
from tests_tiny import TINY

import toy_task
from autofedavg import read_study, run_study
from autofedavg.experiment.folder import Ledger
from deployed import assert_same_run, environment_of, nothing_left

PACKAGES = {"flare": "nvflare", "flower": "flwr"}
VARIANTS = {
    f"{weights[0]}-{constraint}": f'{{ name = "auto-fedavg", S = 2, t0 = 1, '
    f'constraint = "{constraint}", weights = "{weights}" }}'
    for constraint in ("dirichlet", "softmax")
    for weights in ("network", "layer")
}


# Every time the two engines together have both constraints and both kinds of weights: Flower below,
# FLARE in test_guarded_engines.py. All four variants on both are among the long checks.


def study_of(folder: Path, rounds: int, test_local: str = "auto") -> Path:
    """The tiny study with a row for each of the paper's four variants."""
    settings = f'rounds = {rounds}\ntest_local = "{test_local}"'
    head = TINY[: TINY.index("[[run]]")].replace("rounds = 3", settings)
    head = head.replace('baseline = "fedavg"\n', "")
    rows = [f'[[run]]\nname = "{name}"\nmethod = {method}\n' for name, method in VARIANTS.items()]
    path = folder / "variants.toml"
    path.write_text(head + "\n".join(rows))
    return path


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("engine", "rounds"), [("flare", 2), ("flower", 1)])
def test_variants_give_the_same_bits(engine, rounds, command, tmp_path, monkeypatch):
    pytest.importorskip(PACKAGES[engine], reason=f"the extra `{engine}` is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # On Flower every message starts processes: fewer tests of sites' own models.
    study = study_of(tmp_path, rounds, "none" if engine == "flower" else "auto")
    here = run_study(read_study(study), tmp_path / "simulated")
    done = command("run", study, "--engine", engine, "--out", tmp_path / "runs", timeout=1780)
    assert done.returncode == 0, done.stderr
    for row in VARIANTS:
        there = tmp_path / "runs" / "tiny" / row / "seed-0"
        assert_same_run(here / row / "seed-0", there)
        assert environment_of(there)["engine"] == engine
    nothing_left(str(tmp_path))


@pytest.mark.timeout(900)
def test_flower_gives_the_same_bits_at_two_small_sites(command, tmp_path, monkeypatch):
    """Every message starts a process: a task without MONAI, and fewer sites than above."""
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", toy_task.install(tmp_path / "installed"))
    row = f'[[run]]\nname = "row"\nmethod = {VARIANTS["l-softmax"]}\n'
    (tmp_path / "toys.toml").write_text(toy_task.STUDY + row)
    for engine in ("simulator", "flower"):
        how = ("--engine", engine, "--threads", 1, "--out", tmp_path / engine)
        done = command("run", tmp_path / "toys.toml", *how, timeout=800)
        assert done.returncode == 0, done.stderr
    here, there = (tmp_path / engine / "toys/row/seed-0" for engine in ("simulator", "flower"))
    assert_same_run(here, there)
    assert environment_of(there)["engine"] == "flower"
    (line,) = Ledger(there).rounds()
    assert line["learned"]
    nothing_left(str(tmp_path))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", ["flare", "flower"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
@pytest.mark.slow
def test_a_command_that_is_stopped_leaves_nothing_and_is_resumed(
    engine, number, start, command, tmp_path, monkeypatch
):
    pytest.importorskip(PACKAGES[engine], reason=f"the extra `{engine}` is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    study = study_of(tmp_path, 3)
    here = run_study(read_study(study, only=["n-dirichlet"]), tmp_path / "simulated")
    how = ("--only", "n-dirichlet", "--engine", engine, "--out", tmp_path / "runs")
    running = start("run", study, *how)
    run = tmp_path / "runs" / "tiny" / "n-dirichlet" / "seed-0"
    until = time.monotonic() + 500
    while not Ledger(run).rounds():
        assert running.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    running.send_signal(number)
    assert running.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    nothing_left(str(tmp_path))
    done = command("resume", run, timeout=600)
    assert done.returncode == 0, done.stderr
    assert_same_run(here / "n-dirichlet" / "seed-0", run)
