"""Settings shared by all tests: generated volumes and sites' secrets go to the test cache."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ["AUTOFEDAVG_CACHE"] = str(Path(__file__).parent / ".pytest_cache" / "autofedavg")
os.environ["AUTOFEDAVG_STATE"] = str(Path(__file__).parent / ".pytest_cache" / "state")

# Doctests are looked for in every module, and these need Triton, which comes with CUDA.
if find_spec("triton") is None:
    stacked = "src/autofedavg/engines/simulator/stacked"
    files = ("kernels/*", "program.py", "stack.py", "weighing.py")
    collect_ignore_glob = [f"{stacked}/{name}" for name in files]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test named by an address in memory: workers in parallel would not agree on it."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid}: its name changes with every process; give it ids of its own"
            )
