"""The programs of docs/, as modules."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest


def program(name: str):
    path = Path(__file__).parents[2] / "docs" / f"{name}.py"
    spec = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def rebuild():
    return program("rebuild")


@pytest.fixture(scope="session")
def sentences():
    return program("sentences")
