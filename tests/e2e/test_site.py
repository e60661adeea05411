"""`make docs` builds the documentation as a site, and refuses one that does not hold together."""

import importlib
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import autofedavg

pytest.importorskip("furo", reason="the extra 'docs' is not installed")
pytest.importorskip("myst_parser", reason="the extra 'docs' is not installed")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def build(root: Path, out: Path) -> subprocess.CompletedProcess:
    """What `make docs` runs, on the tree below a folder."""
    (line,) = [
        line.split("sphinx ")[1]
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "-m sphinx" in line
    ]
    options = [str(out) if word == "build/docs" else word for word in line.split()]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_there_and_can_be_searched(site) -> None:
    pages = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    pages += [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")]
    index = (site / "searchindex.js").read_text()
    for page in pages:
        assert (site / page).with_suffix(".html").is_file(), page
        assert f'"{page.removesuffix(".md")}"' in index
    assert "docs/index.html" in (site / "index.html").read_text()


def test_the_reference_has_every_public_name(site) -> None:
    text = (site / "objects.inv").read_bytes()
    known = zlib.decompress(text.split(b"\n", 4)[4]).decode()
    names = [f"autofedavg.{name}" for name in autofedavg.__all__]
    for module in ("methods.base", "tasks.base"):
        loaded = importlib.import_module(f"autofedavg.{module}")
        names += [
            f"autofedavg.{module}.{name}"
            for name, value in vars(loaded).items()
            if isinstance(value, type) and value.__module__ == loaded.__name__
        ]
    errors = importlib.import_module("autofedavg.core.errors")
    names += [
        f"autofedavg.core.errors.{name}"
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.AutoFedAvgError)
    ]
    missing = [name for name in names if f"\n{name} py:" not in f"\n{known}"]
    assert not missing
    assert len(names) > 30


def test_a_link_to_a_source_file_leads_to_its_listing(site) -> None:
    page = (site / "docs" / "explanation" / "algorithm.html").read_text()
    assert 'href="../../files/src/autofedavg/algorithm.py.html"' in page
    listing = (site / "files" / "src" / "autofedavg" / "algorithm.py.html").read_text()
    assert "auto_fedavg" in listing


def test_the_site_loads_nothing_from_elsewhere(site) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        for start in ('<script src="http', '<link rel="stylesheet" href="http', '<img src="http'):
            assert start not in text, page


INDEX = "# Index\n\n```{toctree}\n:glob:\n\npage*\n```\n"
PAGE = "# Page\n\n## Part\n\n[source](../src/code.py), [there](index.md), [here](#part)\n"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"page": PAGE + "[x](none.md)"}, "none.md"),
        ({"page": PAGE + "[x](../src/none.py)"}, "none.py"),
        ({"page": PAGE + "[x](index.md#none)"}, "none"),
        ({"page": PAGE + "[x](#none)"}, "none"),
        ({"page": PAGE + "![x](none.png)"}, "none.png"),
        ({"other": PAGE}, "isn't included in any toctree"),
        ({"index": INDEX.replace("page*", "page*\nnone")}, "none"),
    ],
    ids=["whole", "page", "file", "anchor", "own-anchor", "image", "lonely", "toctree"],
)
def test_what_does_not_hold_together_is_refused(tmp_path, changed, said) -> None:
    for name, text in {"index": INDEX, "page": PAGE, **changed}.items():
        path = tmp_path / "docs" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    shutil.copy(ROOT / "docs" / "conf.py", tmp_path / "docs")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("x = 1\n")
    done = build(tmp_path, tmp_path / "out")
    assert (done.returncode == 0) == (not changed), done.stderr
    assert said in done.stderr
