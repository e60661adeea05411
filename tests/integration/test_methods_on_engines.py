"""Methods beyond FedAvg as jobs: what they ask for passes a site's policy, with the same bits."""

import pytest
from tests_tiny import TINY

from autofedavg import read_study, run_study
from autofedavg.engines.remote.server import host
from autofedavg.methods import METHODS
from deployed import InProcessTransport, assert_same_run, environment_of, job_of

# One for each way that a method uses the port: vectors along and back, a number told, a probed
# loss, validation scores, state at the sites.
HOOKS = [n for n in ("scaffold", "fednova", "afl", "ga", "ditto", "fedbn") if n in METHODS]
REAL = [name for name in ("scaffold", "ditto", "ga", "fedbn") if name in METHODS]
ELSEWHERE = {
    "fedma",  # needs a plain chain of layers: test_fedma.py
    "feddisco",  # needs class counts, which these hospitals lack: contracts/test_methods.py
}
OTHERS = sorted(set(METHODS) - set(HOOKS) - ELSEWHERE)


def study_of(folder, names):
    """The tiny study with a row for each of these methods, of two rounds."""
    head = TINY[: TINY.index("[[run]]")].replace("rounds = 3", 'rounds = 2\ntest_local = "none"')
    head = head.replace('baseline = "fedavg"\n', "")
    if any(METHODS[name].needs_proxy for name in names):
        head = head.replace("[base.task]", "[base.task]\nproxy = 2")
    if "local-only" in names:  # its models are the sites' own
        head = head.replace('test_local = "none"', 'test_local = "own"')
    rows = [f'[[run]]\nname = "{name}"\nmethod = {{ name = "{name}" }}\n' for name in names]
    path = folder / "methods.toml"
    path.write_text(head + "\n".join(rows))
    return read_study(path)


@pytest.mark.parametrize(
    "name", [*HOOKS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_a_job_has_the_simulators_bits(name, tmp_path):
    study = study_of(tmp_path, [name])
    here = run_study(study, tmp_path / "simulated")
    job = job_of(study, name)
    there = host(job, InProcessTransport(job), tmp_path / "runs")
    assert_same_run(here / name / "seed-0", there)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("engine", "package"), [("flare", "nvflare"), ("flower", "flwr")])
def test_real_engines_have_the_simulators_bits(engine, package, command, tmp_path, monkeypatch):
    pytest.importorskip(package, reason=f"the extra `{engine}` is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    here = run_study(study_of(tmp_path, REAL), tmp_path / "simulated")
    study, out = tmp_path / "methods.toml", tmp_path / "runs"
    done = command("run", study, "--engine", engine, "--out", out, timeout=1780)
    assert done.returncode == 0, done.stderr
    for name in REAL:
        there = out / "tiny" / name / "seed-0"
        assert_same_run(here / name / "seed-0", there)
        assert environment_of(there)["engine"] == engine
