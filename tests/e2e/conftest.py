"""What rebuilds the documentation's tables, as a module."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def rebuild():
    path = Path(__file__).parents[2] / "docs" / "rebuild.py"
    spec = spec_from_file_location("rebuild", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
