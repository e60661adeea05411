"""Going on with a study that was stopped between its runs."""

import json
import shutil
from pathlib import Path

import pytest
from tests_tiny import TINY

from autofedavg import Machine, resume, run_study
from autofedavg.studies.observer import Observer
from autofedavg.studies.study_file import read_study


class Stopped(Exception):
    """What stops a study here."""


class StopsBehind(Observer):
    """Stops a study when its first run is over."""

    def finished(self, folder: Path) -> None:
        raise Stopped


FIRST, LATER = "local-only", "fedavg"  # rows of the tiny study


def about(home: Path, row: str) -> dict:
    return json.loads((home / row / "seed-0" / "environment.json").read_text())


@pytest.fixture(scope="module")
def cut_once(tmp_path_factory) -> Path:
    """A study that was begun with two threads, with its first run alone."""
    home = tmp_path_factory.mktemp("cut")
    (home / "tiny.toml").write_text(TINY)
    with pytest.raises(Stopped):
        run_study(read_study(home / "tiny.toml"), home, Machine(threads=2), StopsBehind())
    return home / "tiny"


@pytest.fixture
def cut(cut_once: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(cut_once, tmp_path / "runs" / "tiny"))


def test_what_was_not_begun_is_run_as_the_study_was_begun(cut) -> None:
    assert not (cut / LATER).exists()
    resume(cut)
    assert [about(cut, row)["threads"] for row in (FIRST, LATER)] == [2, 2]


def test_one_run_that_was_not_begun(cut, say) -> None:
    folder = cut / LATER / "seed-0"
    code, out, err = say("resume", folder)
    assert code == 0, err
    assert str(folder) in out
    assert about(cut, LATER)["threads"] == 2
    assert not (cut / "n-dirichlet").exists()


def test_a_run_that_the_study_does_not_list(cut, say) -> None:
    code, _, err = say("resume", cut / LATER / "seed-7")
    assert code == 1
    assert "neither a run folder nor a study folder" in err


def test_the_study_folder_near_by_is_named(cut, say, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in ("runs", "runs/tiny/local-only", "runs/tiny/local-only/seed-7"):
        code, _, err = say("resume", wrong)
        assert code == 1
        assert f"{wrong}: neither a run folder nor a study folder" in err
        assert "write `autofedavg resume runs/tiny`, " in err
    shutil.copytree(cut, tmp_path / "runs" / "other one")
    code, _, err = say("resume", "runs")
    assert "name one of these study folders: 'runs/other one', runs/tiny" in err


def test_what_is_asked_for_goes_before(cut) -> None:
    resume(cut, Machine(workers=1, engine="simulator"))
    assert (about(cut, LATER)["workers"], about(cut, LATER)["threads"]) == (1, 2)


def test_study_folders_of_earlier_versions_go_on(cut) -> None:
    path = cut / "study.json"
    content = json.loads(path.read_text())
    for row in content["runs"]:
        del row["machines"]
    path.write_text(json.dumps(content))
    resume(cut)
    assert about(cut, LATER)["engine"] == "simulator"


def test_every_run_keeps_what_it_was_asked_for_with(cut, tiny) -> None:
    study = read_study(tiny, only=[LATER], seeds=[1])
    run_study(study, cut.parent, Machine(threads=1))
    resume(cut)
    assert about(cut, LATER)["threads"] == 2
    assert json.loads((cut / LATER / "seed-1" / "environment.json").read_text())["threads"] == 1


def test_a_row_may_be_a_link(cut, tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (cut / LATER).symlink_to(tmp_path / "elsewhere")
    resume(cut / LATER / "seed-0")
    assert (tmp_path / "elsewhere" / "seed-0" / "scores.csv").is_file()
