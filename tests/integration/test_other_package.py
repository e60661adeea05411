"""A method and a task of another package, which touches nothing of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests_tiny import TINY

import toy_task
from autofedavg.experiment.folder import Ledger
from deployed import assert_same_run, environment_of

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-fed"
version = "1.5"

[project.entry-points."autofedavg.methods"]
acme-power = "acme_fed:Power"
acme-broken = "acme_fed.broken:Broken"

[project.entry-points."autofedavg.tasks"]
acme-hospitals = "acme_fed:Hospitals"
"""
CODE = '''
"""A package of somebody else's."""

from typing import Literal

from autofedavg.methods import Federation, setting
from autofedavg.methods.averaging import AveragingMethod
from autofedavg.methods.base import size_weights
from autofedavg.tasks.synthetic.task import Synthetic


class Power(AveragingMethod):
    """Weights in proportion to a power of the sites' sizes."""

    name: Literal["acme-power"] = "acme-power"
    power: float = setting(0.5, origin="ours", help="0 for even weights, 1 for FedAvg's", ge=0)

    def fixed_weights(self, federation: Federation, t: int):
        alpha = size_weights(federation) ** self.power
        return alpha / alpha.sum()


class Hospitals(Synthetic):
    """Hospitals of somebody else's."""

    name: Literal["acme-hospitals"] = "acme-hospitals"
'''
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """A folder with the installed package."""
    home = tmp_path_factory.mktemp("acme")
    (home / "source" / "acme_fed").mkdir(parents=True)
    (home / "source" / "pyproject.toml").write_text(PROJECT)
    (home / "source" / "acme_fed" / "__init__.py").write_text(CODE)
    (home / "source" / "acme_fed" / "broken.py").write_text("import no_such_library\n")
    install = ["install", "--no-deps", "--no-index", "--no-build-isolation", "--target"]
    command = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
    command += [*install, str(home / "installed"), str(home / "source")]
    subprocess.run(command, check=True, capture_output=True)
    return home / "installed"


@pytest.fixture
def with_package(packages, monkeypatch):
    """Processes that are started find the package, as if it lay in their environment."""
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")


@pytest.fixture
def study(tmp_path) -> Path:
    head = TINY[: TINY.index("[[run]]")].replace('baseline = "fedavg"\n', "")
    head = head.replace("rounds = 3", "rounds = 2").replace('"synthetic"', '"acme-hospitals"')
    rows = ['{ name = "acme-power", power = 0.3 }', '{ name = "acme-broken" }']
    text = [f'[[run]]\nname = "row-{n}"\nmethod = {row}\n' for n, row in enumerate(rows)]
    (tmp_path / "acme.toml").write_text(head.replace('"tiny"', '"acme"') + "\n".join(text))
    return tmp_path / "acme.toml"


def test_it_runs_resumes_and_is_listed(packages, with_package, study, command, tmp_path) -> None:
    listed = command("list", "methods")
    assert listed.returncode == 0, listed.stderr
    lines = {
        line.split()[0]: line.partition("  ")[2].strip() for line in listed.stdout.splitlines()
    }
    assert [*lines][-2:] == ["acme-broken", "acme-power"]  # after ours
    assert lines["acme-power"] == "Weights in proportion to a power of the sites' sizes."
    assert lines["acme-broken"].startswith("cannot be used: autofedavg.methods: acme-broken = ")
    assert "ModuleNotFoundError: No module named 'no_such_library'" in lines["acme-broken"]
    assert "acme-hospitals" in command("list", "tasks", "--json").stdout

    done = command("run", study, "--only", "row-0", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "acme" / "row-0" / "seed-0"
    assert "power = 0.3  # study" in (run / "config.toml").read_text()
    alpha = Ledger(run).rounds()[-1]["alpha"]
    sizes = [parts["train"] for parts in environment_of(run)["data"]["cases"].values()]
    wanted = [size**0.3 for size in sizes]
    assert alpha == pytest.approx([share / sum(wanted) for share in wanted])
    assert command("resume", run).returncode == 0
    alone = {**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"].removeprefix(f"{packages}:")}
    report = command("report", run, env=alone)
    assert report.returncode == 0, report.stderr
    assert "row-0" in report.stdout

    done = command("run", study, "--only", "row-1", "--out", tmp_path / "runs")
    assert done.returncode == 2
    assert "the method 'acme-broken' cannot be imported: ModuleNotFoundError" in done.stderr
    assert "repair or uninstall acme-fed 1.5" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_package_its_run_names_the_method(study, say) -> None:
    code, _, err = say("check", study, "--set", "task.name=synthetic")
    assert code == 2
    assert "'acme-power' is not a known method" in err


@pytest.mark.engine
def test_on_flare_it_gives_the_same_bits(packages, command, tmp_path, monkeypatch) -> None:
    """The method of one package on the task of another, which needs no MONAI."""
    pytest.importorskip("nvflare", reason="the extra `flare` is not installed")
    paths = [str(packages), toy_task.install(tmp_path / "toys")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    row = '[[run]]\nname = "row-0"\nmethod = { name = "acme-power", power = 0.3 }\n'
    study = tmp_path / "toys.toml"
    study.write_text(toy_task.STUDY.replace("rounds = 1", "rounds = 2") + row)
    only = ("run", study, "--threads", 1)
    for engine in ("simulator", "flare"):
        done = command(*only, "--engine", engine, "--out", tmp_path / engine, timeout=800)
        assert done.returncode == 0, done.stderr
    here, there = (tmp_path / engine / "toys/row-0/seed-0" for engine in ("simulator", "flare"))
    assert_same_run(here, there)
    assert environment_of(there)["engine"] == "flare"
