"""Names that stand for classes."""

import sys

import pytest

from autofedavg.core.errors import ConfigError
from autofedavg.core.registry import Registry

SHELF = Registry("book", {"fraction": "fractions:Fraction", "decimal": "decimal:Decimal"})


def test_a_name_gives_its_class():
    from fractions import Fraction

    assert SHELF["fraction"] is Fraction


def test_it_is_a_table_of_names():
    assert list(SHELF) == ["fraction", "decimal"]
    assert len(SHELF) == 2
    assert "fraction" in SHELF
    assert "novel" not in SHELF


def test_nothing_is_imported_before_it_is_looked_up():
    lazy = Registry("module", {"it": "autofedavg.no_such_module:Thing"})
    assert list(lazy) == ["it"]
    assert "it" in lazy
    with pytest.raises(ModuleNotFoundError):
        lazy["it"]
    assert "autofedavg.no_such_module" not in sys.modules


def test_a_near_miss_is_answered_with_the_right_name():
    with pytest.raises(
        ConfigError, match=r"^'fracton' is not a known book; did you mean fraction\?$"
    ):
        SHELF["fracton"]


def test_a_far_miss_is_answered_with_all_names():
    wrong = "^'zzz' is not a known book; choose from: decimal, fraction$"
    with pytest.raises(ConfigError, match=wrong):
        SHELF["zzz"]


def test_get_of_an_unknown_name_says_so_too():
    with pytest.raises(ConfigError, match="is not a known book"):
        SHELF.get("novel")
