"""Run folders to publish: what is kept, what a report makes of it, what is refused."""

import json
import tomllib
from pathlib import Path

import pytest

from autofedavg import read_study, run_study
from autofedavg.core.errors import RunError
from autofedavg.experiment.archive import archive
from autofedavg.methods import METHODS
from autofedavg.report.build import report_tables
from autofedavg.report.formats import joined
from autofedavg.report.read import read_results
from autofedavg.report.values import NEW_IN_METHODS, NEW_IN_TASKS, shared_settings
from autofedavg.tasks import TASKS


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
        "config.toml", "environment.json", "rounds.jsonl", "scores.csv.gz", "status.json",
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


def test_an_archive_can_be_archived(runs, tmp_path) -> None:
    archive([runs], tmp_path / "one")
    archive([tmp_path / "one"], tmp_path / "two")
    for path in (tmp_path / "one").rglob("*"):
        twin = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.is_dir() or twin.read_bytes() == path.read_bytes()


def test_rows_stand_as_in_the_study_whatever_came_first(tmp_path) -> None:
    from tests_tiny import TINY

    (tmp_path / "tiny.toml").write_text(TINY)
    pieces = []
    for row in ("n-dirichlet", "fedavg", "local-only"):
        study = read_study(tmp_path / "tiny.toml", only=[row])
        pieces.append(run_study(study, tmp_path / row))
        run_study(study, tmp_path / "runs")
    wanted = ["local-only", "fedavg", "n-dirichlet"]
    assert [row.name for row in read_results(pieces).rows] == wanted
    for piece in pieces:
        archive([piece], tmp_path / "out")
    for home in (tmp_path / "runs" / "tiny", tmp_path / "out" / "tiny"):
        assert [row.name for row in read_results([home]).rows] == wanted


def test_runs_of_an_older_version_leave_the_order_alone(runs, tmp_path) -> None:
    archive([runs / "n-dirichlet"], tmp_path / "out")
    order = json.loads((runs / "study.json").read_text())["rows"]
    assert len(order) > 2
    archive([runs / "fedavg"], tmp_path / "old")
    listed = tmp_path / "old" / "tiny" / "study.json"
    content = json.loads(listed.read_text())
    del content["rows"]  # as it was before rows were told
    listed.write_text(json.dumps(content))
    archive([tmp_path / "old"], tmp_path / "out")
    found = json.loads((tmp_path / "out" / "tiny" / "study.json").read_text())
    assert [row["config"]["name"] for row in found["runs"]] == ["fedavg", "n-dirichlet"]
    assert found["rows"] == order


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


def test_what_a_killed_call_left_is_no_run(runs, tmp_path) -> None:
    archive([runs], tmp_path)
    half = tmp_path / "tiny" / "fedavg" / "seed-1.part"
    half.mkdir()
    (half / "config.toml").write_text("schema = 1")
    assert tables(tmp_path / "tiny") == tables(runs)


def test_a_repeat_from_another_folder_and_an_older_version_stands_in_the_same_table() -> None:
    """Published runs must take further seeds whatever settings are new since."""
    published = Path(__file__).parents[2] / "results" / "study-lgg" / "fedavg" / "fold-0" / "seed-0"
    old = tomllib.loads((published / "config.toml").read_text())
    new = json.loads(json.dumps(old))
    new["method"]["redraw"] = 10
    new["task"] |= {"mirrored": [], "root": "/elsewhere", "datalist": "list.csv", "fold": 3}
    assert shared_settings(new) == shared_settings(old)
    for part, key, value in (
        ("task", "mirrored", ["DU"]), ("method", "redraw", 3), ("training", "iterations", 7),
    ):  # fmt: skip
        other = json.loads(json.dumps(new))
        other[part][key] = value
        assert shared_settings(other) != shared_settings(old)


def test_what_is_filled_in_is_the_default() -> None:
    for name, settings in NEW_IN_METHODS.items():
        defaults = METHODS[name]().model_dump(mode="json")
        assert settings == {key: defaults[key] for key in settings}
    for name in ("synthetic", "datalist", "pancreas"):
        defaults = TASKS[name]().model_dump(mode="json")
        assert {key: defaults[key] for key in NEW_IN_TASKS} == NEW_IN_TASKS
