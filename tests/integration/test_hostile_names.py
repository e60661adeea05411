"""Names that sites and studies choose: in spreadsheets and terminals they stay names."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofedavg import cli
from autofedavg.core.errors import DataError
from autofedavg.core.scores import ScoreRow
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.report.build import build_report
from autofedavg.tasks.imaging.cache import cache_home
from folders import METHODS, write_study

FORMULAS = ("=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1")


@pytest.fixture
def home(tmp_path) -> Path:
    """A study in which every name that a site or a study chooses is a formula."""
    methods = {name: METHODS[name] for name in ("fedavg", "n-dirichlet")}
    labels = {"fedavg": "=cmd|'/c calc'!A1", "n-dirichlet": "-\x1b]0;owned\x07"}
    home = write_study(tmp_path / "study", methods, sites=("=A()", "B"), labels=labels, cases=6)
    for name in methods:
        run = RunFolder(home / name / "seed-0")
        rows = [row._replace(case=FORMULAS[int(row.case[-1])]) for row in run.scores()]
        run.write_scores(rows)
        run.set_status("finished")
    return home


def cells(content: bytes) -> list[str]:
    return [cell for line in csv.reader(io.StringIO(content.decode(), newline="")) for cell in line]


def number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_no_cell_of_an_exported_file_is_a_formula(home) -> None:
    files = build_report([home], examples=False).files
    found = {name: cells(make()) for name, make in files.items() if name.endswith(".csv")}
    assert {name.partition("/")[0] for name in found} == {"tables", "figures", "cases"}
    for name, texts in found.items():
        for text in texts:
            assert not text.startswith(("=", "+", "@", "\t", "\r")) or number(text), name
            assert not text.startswith("-") or number(text), name
    assert {f"'{formula}" for formula in FORMULAS} <= {*found["cases/fedavg.csv"]}
    assert "'=A()" in found["cases/fedavg.csv"]
    assert "'=cmd|'/c calc'!A1" in found["tables/scores.csv"]
    below = [text for texts in found.values() for text in texts if text.startswith("-")]
    assert below  # numbers below zero stay numbers


def test_the_runs_own_scores_are_as_the_sites_named_them(home, tmp_path) -> None:
    """scores.csv is for this package to read back, so nothing is put before a name there."""
    rows = [ScoreRow("global", "=A()", "test", formula, "dice", 0.5) for formula in FORMULAS]
    folder = RunFolder(tmp_path)
    folder.write_scores(rows)
    assert list(folder.scores()) == rows


@pytest.mark.parametrize("format", ["text", "markdown", "latex"])
def test_a_report_steers_no_terminal(home, capsys, format) -> None:
    assert cli._main(["report", str(home), "--format", format]) == 0
    out = capsys.readouterr().out
    assert "owned" in out
    assert all(character.isprintable() or character == "\n" for character in out)


NOBODY = """
import os, pwd
def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
import autofedavg.tasks.imaging.image
from autofedavg import cli
raise SystemExit(cli._main(["run", *__import__("sys").argv[1:]]))
"""
NAMES = ("USER", "LOGNAME", "LNAME", "USERNAME", "HOME", "XDG_CACHE_HOME", "AUTOFEDAVG_CACHE")


@pytest.mark.parametrize("cache", [False, True])
def test_a_user_without_a_name_and_a_home(tiny, tmp_path, cache) -> None:
    """As in a container that runs under a number: it works, or says what to set."""
    env = {key: value for key, value in os.environ.items() if key not in NAMES}
    env |= {"AUTOFEDAVG_CACHE": str(tmp_path / "cache")} if cache else {}
    given = [str(tiny), "--only", "fedavg", "--set", "rounds=1", "--out", str(tmp_path / "runs")]
    done = subprocess.run(
        [sys.executable, "-c", NOBODY, *given], env=env, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if cache else 3), done.stderr
    if cache:
        status = tmp_path / "runs" / "tiny" / "fedavg" / "seed-0" / "status.json"
        assert json.loads(status.read_text())["state"] == "finished"
    else:
        assert "has no home folder to keep prepared cases in; set AUTOFEDAVG_CACHE" in done.stderr


def test_a_cache_that_is_named_needs_no_home(monkeypatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setenv("AUTOFEDAVG_CACHE", "/mine")
    assert cache_home() == Path("/mine")
    monkeypatch.delenv("AUTOFEDAVG_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(DataError, match=r"set AUTOFEDAVG_CACHE, or task\.cache"):
        cache_home()
