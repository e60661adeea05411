"""The programs of docs/, as modules."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from unittest.mock import patch

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def program(name: str):
    spec = spec_from_file_location(name, DOCS / f"{name}.py")
    module = module_from_spec(spec)
    with patch.object(sys, "path", [str(DOCS), *sys.path]):  # as for a program that is run
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def rebuild():
    return program("rebuild")


@pytest.fixture(scope="session")
def sentences():
    return program("sentences")
