"""Run folders to publish: what is kept, what a report makes of it, what is refused."""

import json
from pathlib import Path

import pytest

from autofedavg import read_study, run_study
from autofedavg.errors import RunError
from autofedavg.experiment.archive import archive
from autofedavg.report.build import report_tables
from autofedavg.report.formats import joined
from autofedavg.report.read import read_results


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two rows of the tiny study, in two calls as a study goes on."""
    from tests_tiny import TINY

    home = tmp_path_factory.mktemp("archived")
    (home / "tiny.toml").write_text(TINY)
    for row in ("fedavg", "n-dirichlet"):
        run_study(read_study(home / "tiny.toml", only=[row]), home / "runs")
    return home / "runs" / "tiny"


def tables(path: Path) -> str:
    made = report_tables(read_results([path]))
    return joined([*made["scores"], *made["weights"]], "text")


def test_an_archive_gives_the_same_tables_without_the_weights(runs, tmp_path, command) -> None:
    done = command("archive", runs, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [
        str(tmp_path / "tiny" / row / "seed-0") for row in ("fedavg", "n-dirichlet")
    ]
    assert tables(tmp_path / "tiny") == tables(runs)
    kept = tmp_path / "tiny" / "fedavg" / "seed-0"
    assert {path.name for path in kept.iterdir()} == {
        "config.toml", "environment.json", "log.txt", "rounds.jsonl", "scores.csv.gz",
        "status.json",
    }  # fmt: skip


def test_runs_may_come_one_after_another(runs, tmp_path) -> None:
    assert len(archive([runs / "fedavg"], tmp_path / "slowly")) == 1
    listed = json.loads((tmp_path / "slowly" / "tiny" / "study.json").read_text())
    assert [row["config"]["name"] for row in listed["runs"]] == ["fedavg"]
    assert len(archive([runs], tmp_path / "slowly")) == 1  # the other one is there
    assert archive([runs], tmp_path / "slowly") == []
    archive([runs], tmp_path / "at once")
    for path in (tmp_path / "at once").rglob("*"):
        twin = tmp_path / "slowly" / path.relative_to(tmp_path / "at once")
        assert path.is_dir() or twin.read_bytes() == path.read_bytes()


def test_what_cannot_be_archived(runs, tmp_path) -> None:
    archive([runs], tmp_path)
    taken = tmp_path / "tiny" / "fedavg" / "seed-0" / "rounds.jsonl"
    taken.write_text(taken.read_text()[:-10])
    with pytest.raises(RunError, match="another run is in the archive"):
        archive([runs], tmp_path)
    going = tmp_path / "going" / "tiny" / "fedavg" / "seed-0"
    going.mkdir(parents=True)
    (going / "config.toml").write_text("")
    (going / "status.json").write_text('{"state": "interrupted"}')
    with pytest.raises(RunError, match="belongs to no study"):
        archive([going], tmp_path / "x")
    (tmp_path / "going" / "tiny" / "study.json").write_text('{"runs": []}')
    with pytest.raises(RunError, match="not finished, but interrupted; finish it with `autofedavg"):
        archive([going], tmp_path / "x")
    assert not (tmp_path / "x").exists()
