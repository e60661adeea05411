"""Names that stand for classes, ours and those of other packages."""

import sys
from importlib.metadata import Distribution

import pytest

from autofedavg.core.errors import ConfigError
from autofedavg.core.registry import Registry

GROUP = "autofedavg.test_books"
OURS = {"fraction": "fractions:Fraction", "decimal": "decimal:Decimal"}
BOOKS = Registry("book", OURS)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution that adds names of books on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(package: str, **entries: str) -> None:
        info = tmp_path / f"{package.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}\n")
        assert Distribution.from_name(package).version == "1.5"

    return add


def books() -> Registry:
    return Registry("book", OURS, group=GROUP, base="numbers:Number")


def test_a_name_gives_its_class():
    from fractions import Fraction

    assert BOOKS["fraction"] is Fraction


def test_it_is_a_table_of_names():
    assert list(BOOKS) == ["fraction", "decimal"]
    assert len(BOOKS) == 2
    assert "fraction" in BOOKS
    assert "novel" not in BOOKS


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
        BOOKS["fracton"]


def test_a_far_miss_is_answered_with_all_names():
    wrong = "^'zzz' is not a known book; choose from: decimal, fraction$"
    with pytest.raises(ConfigError, match=wrong):
        BOOKS["zzz"]


def test_get_of_an_unknown_name_says_so_too():
    with pytest.raises(ConfigError, match="is not a known book"):
        BOOKS.get("novel")


def test_an_installed_package_adds_a_name(install, tmp_path):
    (tmp_path / "acme_books.py").write_text("class Novel(int):\n    pass\n")
    install("acme-books", novel="acme_books:Novel")
    found = books()
    assert list(found) == ["fraction", "decimal", "novel"]
    assert len(found) == 3
    assert "acme_books" not in sys.modules
    assert found["novel"].__module__ == "acme_books"
    assert list(Registry("book", OURS)) == ["fraction", "decimal"]


def test_a_package_that_cannot_be_imported_fails_only_when_it_is_used(install, tmp_path):
    (tmp_path / "broken_books.py").write_text("raise RuntimeError('no licence')\n")
    install("broken-books", broken="broken_books:Book", absent="no_such_books:Book")
    found = books()
    assert [*found] == ["fraction", "decimal", "absent", "broken"]
    assert found["fraction"] is BOOKS["fraction"]
    wrong = "the book 'broken' cannot be imported: RuntimeError: no licence; repair or uninstall "
    with pytest.raises(ConfigError, match=f"{wrong}broken-books 1.5$") as caught:
        found["broken"]
    assert caught.value.where == f"{GROUP}: broken = 'broken_books:Book' of broken-books 1.5"
    with pytest.raises(ConfigError, match="ModuleNotFoundError: No module named 'no_such_books'"):
        found["absent"]


def test_a_name_of_ours_is_not_taken_over(install):
    install("acme-books", fraction="decimal:Decimal")
    found = books()
    assert list(found) == ["fraction", "decimal"]
    wrong = "^the book 'fraction' is defined by several packages: autofedavg, acme-books 1.5; "
    with pytest.raises(ConfigError, match=f"{wrong}uninstall acme-books 1.5, or rename"):
        found["fraction"]
    assert found["decimal"] is BOOKS["decimal"]


def test_a_name_that_two_packages_add_is_refused(install):
    install("acme-books", novel="fractions:Fraction")
    install("zenith-books", novel="decimal:Decimal")
    with pytest.raises(ConfigError, match=r"several packages: acme-books 1\.5, zenith-books 1\.5"):
        books()["novel"]


@pytest.mark.parametrize("value", ["json:JSONDecoder", "json:dumps"])
def test_what_is_not_of_the_kind_is_refused(install, value):
    install("acme-books", novel=value)
    with pytest.raises(ConfigError, match=f"{value} is not a subclass of numbers.Number$"):
        books()["novel"]
