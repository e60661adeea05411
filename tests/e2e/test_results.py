"""The numbers and figures of the documentation are those of the published runs."""

import re
from pathlib import Path

import pytest

from autofedavg import cli
from autofedavg.experiment.folder import Ledger, read_json, run_paths

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"(?<![\d.])\d+\.\d\d(?![\d.])")


def test_every_table_is_the_one_rebuilt(rebuild) -> None:
    for page in rebuild.PAGES:
        text = page.read_text()
        assert rebuild.BLOCK.search(text), page
        assert rebuild.rebuilt(text) == text, f"{page.name}: run python docs/rebuild.py"


def test_the_command_prints_the_same_table(rebuild, capsys) -> None:
    assert (
        cli._main(["report", str(ROOT / "results" / "study-lgg.zip"), "--format", "markdown"]) == 0
    )
    assert rebuild.tables("study-lgg")["scores"] in capsys.readouterr().out


def test_numbers_in_the_text_are_in_the_tables(rebuild) -> None:
    """All that are written with two decimals, as the tables write them."""
    text = (ROOT / "docs" / "reproduction.md").read_text()
    studies = {study for _, study, _, _, _ in rebuild.BLOCK.findall(text)}
    known = "\n".join(table for study in studies for table in rebuild.tables(study).values())
    prose = rebuild.BLOCK.sub("", text)
    prose = re.sub(r"<!-- paper -->.*?<!-- /paper -->", "", prose, flags=re.DOTALL)
    found = NUMBER.findall(prose)
    assert len(found) > 5
    missing = [number for number in found if number not in NUMBER.findall(known)]
    assert not missing


def test_numbers_of_the_readme_are_in_the_tables(rebuild) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    known = NUMBER.findall(rebuild.tables(rebuild.ACROSS)["scores"])
    for together in (rebuild.TUNED, rebuild.ALL_TUNED):
        known += NUMBER.findall(rebuild.tables(together)["risks"])
    found = NUMBER.findall(text.replace("Python 3.11", ""))
    assert found
    assert not [number for number in found if number not in known]


def test_every_figure_is_the_one_rebuilt(rebuild) -> None:
    pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")
    for file, (study, name) in rebuild.FIGURES.items():
        path = ROOT / "docs" / "img" / file
        assert path.read_text() == rebuild.figure(study, name), f"{file}: run docs/rebuild.py"


def test_every_published_run_is_whole_and_says_where_it_comes_from() -> None:
    archives = sorted((ROOT / "results").glob("*.zip"))
    assert {path.name for path in (ROOT / "results").iterdir()} == {
        "README.md", *(path.name for path in archives),
    }  # fmt: skip
    runs = run_paths(archives)
    assert len(runs) > 300
    for run in runs:
        about = read_json(run / "environment.json")
        assert about["versions"]["torch"]
        assert Ledger(run).finished
        files = {"config.toml", "environment.json", "rounds.jsonl", "scores.csv", "status.json"}
        found = {path.name for path in run.iterdir()}
        # Runs before version 0.2 have no origins, and only some runs a ceiling.
        assert found - {"origins.json", "ceiling.json"} == files


def test_every_archive_says_which_commits_its_runs_recorded(rebuild) -> None:
    lines = [line.split("|") for line in rebuild.tables(rebuild.ARCHIVES)["recorded"].splitlines()]
    said = {line[1].strip(): [cell.strip() for cell in line[2:6]] for line in lines if line[2:]}
    for archive in (ROOT / "results").glob("*.zip"):
        runs = [read_json(run / "environment.json") for run in run_paths([archive])]
        count, commits, torch, device = said[archive.stem]
        assert int(count) == len(runs)
        for about in runs:
            assert (about["commit"] or "none")[:7] in commits
            assert about["versions"]["torch"].partition("+")[0] in torch
            assert about["device"].replace("cpu", "CPU") == device
        found = re.findall(r"\((\d+)\)", commits)
        assert not found or sum(map(int, found)) == len(runs)
    assert len(said) == 2 + len([*(ROOT / "results").glob("*.zip")])  # two lines are the head
