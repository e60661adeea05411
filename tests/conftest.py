"""Fixtures for the whole suite; `toy` holds the small problems they are made from."""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import settings

# pytest's importlib mode leaves sys.path alone; this is what makes `import toy` work.
sys.path.insert(0, str(Path(__file__).parent))

from autofedavg.core.seeds import Seeds
from autofedavg.federation.port import Federation
from browsing import browser, open_page  # noqa: F401 - fixtures for all tests
from tiers import ByScope, in_order, is_costly, mark, without_programs
from toy import DirectFleet, toy_problem

# The toy networks are far too small for threads, which wait for each other on a busy machine.
torch.set_num_threads(1)

# Always the same examples; `make test-all` tries many more.
FIXED = {"deadline": None, "derandomize": True, "database": None}
settings.register_profile("suite", max_examples=40, **FIXED)
# Under coverage a few examples do: they are to reach lines, and the first tier tries all of them.
settings.register_profile("traced", max_examples=5, **FIXED)
settings.register_profile("thorough", max_examples=300, **FIXED)
settings.load_profile(os.environ.get("AUTOFEDAVG_EXAMPLES", "suite"))


def pytest_collection_modifyitems(items):
    mark(items)
    in_order(items)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByScope(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(autouse=True)
def tier_one_starts_nothing(request):
    """The first tier stays quick: none of its tests starts an interpreter, or waits for a disk."""
    if is_costly(request.node):
        yield
        return
    # What its tests write need not survive a loss of power.
    with without_programs(), patch.object(os, "fsync", lambda _: None):
        yield


@pytest.fixture
def seeds():
    return Seeds(7)


@pytest.fixture
def problem():
    """Three sites, a small classifier."""
    return toy_problem(3)


@pytest.fixture
def transport(problem):
    """The clients of `problem` in this process, with what they were asked and how they answer."""
    return DirectFleet(problem)


@pytest.fixture
def federation(transport):
    return Federation(transport)
