"""The built wheel alone, in an empty folder: no checkout, no network."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from autofedavg import __version__
from autofedavg.studies.study_file import builtin_studies

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir"]
    subprocess.run([*PIP, *build, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs a script of a new environment in an empty folder; the environment has the wheel alone.

    What the wheel depends on is taken from the running environment. Its editable install is not:
    a .pth file adds a folder to the path, and nothing that .pth files in that folder would add.
    """
    home = tmp_path_factory.mktemp("environment")
    python = home / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*PIP, *install], check=True, capture_output=True)
    empty = tmp_path_factory.mktemp("empty")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(script: str, *arguments: str) -> str:
        done = subprocess.run(
            [home / "bin" / script, *arguments],
            cwd=empty,
            env={**variables, "HOME": str(empty)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.site, run.folder = site, empty
    return run


def test_the_wheel_holds_every_file_of_the_package(wheel) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for path in (ROOT / "src").rglob("*") if path.is_file()}
    kept = {str(path.relative_to(ROOT / "src")) for path in files if path.suffix != ".pyc"}
    assert names == kept
    assert "autofedavg/studies/builtin/demo.toml" in names
    assert wheel.name == f"autofedavg-{__version__}-py3-none-any.whl"


def test_a_study_runs_and_is_reported_from_the_wheel_alone(installed) -> None:
    where = "import autofedavg; print(autofedavg.__file__)"
    assert installed("python", "-c", where).strip() == str(
        installed.site / "autofedavg/__init__.py"
    )
    assert json.loads(installed("autofedavg", "list", "studies", "--json")) == [*builtin_studies()]
    rows = ("--only", "fedavg", "--only", "n-dirichlet")
    printed = installed("autofedavg", "run", "demo", *rows, "--set", "rounds=2")
    assert printed == "run folder: runs/demo\n"
    run = installed.folder / "runs" / "demo" / "n-dirichlet" / "seed-0"
    assert "rounds = 2  # study" in (run / "config.toml").read_text()
    environment = json.loads((run / "environment.json").read_text())
    assert environment["versions"]["autofedavg"] == __version__
    assert environment["commit"] is None
    table = installed("autofedavg", "report", "runs/demo", "--out", "page")
    assert "Three synthetic hospitals" in table
    assert "\nFedAvg " in table
    assert "\nAuto-FedAvg-N-Dirichlet " in table
    page = (installed.folder / "page" / "index.html").read_text()
    assert "Auto-FedAvg-N-Dirichlet" in page
    assert len([*(installed.folder / "page").rglob("*.svg")]) > 3
