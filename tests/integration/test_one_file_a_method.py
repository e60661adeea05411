"""A method is one file and one line of the registry: the package works without it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import autofedavg
from autofedavg.methods import METHODS

PACKAGE = Path(autofedavg.__file__).parent
AT_MOST = {
    "ditto": 50,
    "fedadam": 50,
    "fedbe": 110,
    "feddf": 110,
    "fednova": 50,
    "median": 50,
    "scaffold": 50,
}


@pytest.mark.parametrize("name", AT_MOST)
def test_it_is_a_short_file(name: str) -> None:
    lines = (PACKAGE / "methods" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= AT_MOST[name]


def test_adding_it_changes_the_registry_and_no_other_file(tmp_path: Path) -> None:
    copy = tmp_path / "autofedavg"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in AT_MOST:
        (copy / "methods" / f"{name}.py").unlink()
    # The stub lists public names: it is the other half of the registry.
    for registry in (copy / "methods" / "__init__.py", copy / "__init__.pyi"):
        kept = [
            line
            for line in registry.read_text(encoding="utf-8").splitlines()
            if not any(f"autofedavg.methods.{name}" in line for name in AT_MOST)
        ]
        registry.write_text("\n".join(kept) + "\n", encoding="utf-8")
    program = (
        "import autofedavg, importlib, pkgutil\n"
        "from autofedavg.methods import METHODS\n"
        "import autofedavg.methods as methods\n"
        "for found in pkgutil.walk_packages(methods.__path__, 'autofedavg.methods.'):\n"
        "    importlib.import_module(found.name)\n"
        "for name in autofedavg.__all__:\n"
        "    getattr(autofedavg, name)\n"
        "print(*METHODS)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [name for name in METHODS if name not in AT_MOST]
