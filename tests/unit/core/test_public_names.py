"""Every name that the package exports can be imported, and is what it says."""

import importlib

import pytest

import autofedavg


@pytest.mark.parametrize("name", autofedavg.__all__)
def test_every_exported_name_resolves(name: str) -> None:
    found = getattr(autofedavg, name)
    assert found.__name__ == name
    home = importlib.import_module(found.__module__)
    assert getattr(home, name) is found


def test_from_autofedavg_import_problem() -> None:
    from autofedavg import Problem

    assert Problem.__module__ == "autofedavg.core.problem"
