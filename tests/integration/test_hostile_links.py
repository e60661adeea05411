"""A run folder from elsewhere must not make us write elsewhere; and what fails leaves no mess."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from autofedavg import cli
from autofedavg.core.errors import RunError
from autofedavg.experiment import files
from autofedavg.experiment import folder_writer as store
from autofedavg.experiment.checkpoint_names import CheckpointNames, site_name
from autofedavg.experiment.folder_writer import RunFolder, write_atomically
from folders import write_study


@pytest.fixture
def unfinished(tiny_home, tmp_path) -> Path:
    """A run to go on with: its test is missing."""
    run = tmp_path / "tiny" / "fedavg" / "seed-0"
    shutil.copytree(tiny_home / "fedavg" / "seed-0", run)
    (run / "status.json").write_text('{"state": "running"}')
    return run


@pytest.fixture
def victim(tmp_path) -> Path:
    path = tmp_path / "start file of a shell"
    path.write_text("echo hello\n")
    return path


@pytest.mark.parametrize("name", [".lock", "log.txt"])
def test_resume_writes_through_no_link(unfinished, victim, capsys, name) -> None:
    (unfinished / name).unlink(missing_ok=True)
    (unfinished / name).symlink_to(victim)
    assert cli._main(["resume", str(unfinished)]) == 1
    said = capsys.readouterr().err
    assert f"error: {unfinished / name}: this is a link or no plain file" in said
    assert "remove it" in said
    assert victim.read_text() == "echo hello\n"


def test_resume_replaces_links_and_does_not_follow_them(unfinished, victim, capsys) -> None:
    """Files that are written anew take the link's place; old names of parts mean nothing."""
    shutil.copy(unfinished / "rounds.jsonl", victim)
    before = victim.read_bytes()
    names = ["rounds.jsonl", "status.json.part", "scores.csv", "scores.csv.part"]
    names += ["environment.json.part", "checkpoints/last-3.json.part"]
    for name in names:
        (unfinished / name).unlink(missing_ok=True)
        (unfinished / name).symlink_to(victim)
    assert cli._main(["resume", str(unfinished)]) == 0
    assert victim.read_bytes() == before
    assert not (unfinished / "rounds.jsonl").is_symlink()
    assert not (unfinished / "scores.csv").is_symlink()


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_rounds_are_appended_to_a_plain_file_only(tmp_path, victim, kind) -> None:
    path = tmp_path / "rounds.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim if kind == "link" else tmp_path / "new")
    with pytest.raises(RunError, match=r"rounds.jsonl: this is a link or no plain file"):
        RunFolder(tmp_path).append_round({"t": 1})
    assert victim.read_text() == "echo hello\n"
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_no_part_behind(tmp_path, monkeypatch) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new" * 9999)
    with pytest.raises(OSError, match="No space left"):
        RunFolder(tmp_path).write_scores([])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"status.json": b"old"}


def test_what_a_killed_process_left_is_swept_by_the_next(tmp_path) -> None:
    (tmp_path / "checkpoints").mkdir()
    left = [tmp_path / "status.json.0123abcd.part", tmp_path / "checkpoints" / "x.00000000.part"]
    mine = [tmp_path / "notes.part", tmp_path / "a.nii.gz.part"]
    for path in (*left, *mine):
        path.write_text("half")
    with RunFolder(tmp_path).lock():
        pass
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in mine)


def test_a_run_is_locked_before_there_is_anything_in_it(
    tiny, tmp_path, capsys, monkeypatch
) -> None:
    seen = []
    original = RunFolder.create.__func__

    def create(cls, path, *content):
        with pytest.raises(store.Busy):
            RunFolder(path).lock().__enter__()
        seen.append(sorted(file.name for file in path.iterdir()))
        return original(cls, path, *content)

    monkeypatch.setattr(RunFolder, "create", classmethod(create))
    given = ["--only", "fedavg", "--set", "rounds=1", "--out", str(tmp_path / "runs")]
    assert cli._main(["run", str(tiny), *given]) == 0
    assert seen == [[".lock"]]


SITES = ("x" * 300, "北京协和医院" * 5, "y" * 200, "a/b", "Süd", "..", "@12")


@pytest.mark.parametrize("site", SITES)
def test_a_site_of_any_name_has_a_file(tmp_path, site) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    name = site_name("best", "local", site)
    folder.save(f"{name}@123456", {"w": torch.ones(2)}, {})
    folder.save_round(1, {"w": torch.ones(1)}, {"models": {name: f"{name}@123456"}})
    assert folder.has(name)
    assert torch.equal(folder.load(name).tensors["w"], torch.ones(2))
    assert CheckpointNames(tmp_path / "checkpoints").models() == [f"{name}@123456"]
    assert {path.parent for path in tmp_path.rglob("*.safetensors")} == {tmp_path / "checkpoints"}


def test_long_names_differ_and_short_ones_are_as_before() -> None:
    assert site_name("best", "local", "x" * 300) != site_name("best", "local", "x" * 301)
    assert site_name("best", "local", "x" * 200) == "best-local-" + "x" * 200
    assert site_name("final", "local", "Süd 1") == "final-local-S%C3%BCd%201"


def test_files_that_others_put_there_are_no_checkpoints(tmp_path) -> None:
    home = write_study(tmp_path / "study")
    models = home / "fedavg" / "seed-0" / "checkpoints"
    folder = RunFolder(models.parent)
    folder.save_round(1, {"w": torch.ones(1)}, {})
    for name in ("last-1 (copy).json", "last-.json", "last-1e9.json", "notes.json", "best-of.json"):
        shutil.copy(models / "last-1.json", models / name)
    assert folder.checkpoints.rounds() == [1]
    assert folder.load_round() is not None
    folder.tidy()
    assert (models / "notes.json").exists()
    assert (models / "best-of.json").exists()
