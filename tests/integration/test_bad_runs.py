"""Bad input stops a run with a message that names the place, and nothing is lost."""

import json

import nibabel
import numpy as np
import pytest

from autofedavg import cli, read_study, resume, run_study
from autofedavg.core.errors import AutoFedAvgError, RunError
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table
from autofedavg.tasks.synthetic.task import Synthetic


def test_a_label_spoiled_in_the_cache_is_told_through_the_command(tiny, tmp_path, capsys) -> None:
    task = Synthetic(scale=0.02, extent=(24.0, 24.0, 30.0), cache=str(tmp_path / "cache"))
    folder = task._generate(None)
    spoiled = folder / "II-0001_label.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros((3, 3, 3), np.uint8), np.eye(4)), spoiled)
    code = cli._main(
        ["run", str(tiny), "--out", str(tmp_path), "--set", f"task.cache={tmp_path / 'cache'}"]
    )
    err = capsys.readouterr().err
    assert code == 3
    assert "1 of 20 cases cannot be used" in err
    assert "II-0001_label.nii.gz: its grid is 3 x 3 x 3" in err


def test_nan_loss_names_client_round_and_step_and_keeps_the_last_good_checkpoint(
    tiny, tmp_path, monkeypatch, capsys
) -> None:
    import autofedavg.tasks.imaging.segmentation as segmentation

    original = segmentation.SegmentationSite._batch

    def spoil(self, split, picks, random, augment):
        image, label = original(self, split, picks, random, augment)
        spoil.calls += self.site == "II" and split == "train"
        return (image * float("nan") if spoil.calls == 4 else image), label

    spoil.calls = 0
    monkeypatch.setattr(segmentation.SegmentationSite, "_batch", spoil)
    arguments = ["run", str(tiny), "--only", "fedavg", "--out", str(tmp_path), "--workers", "1"]
    assert cli._main(arguments) == 1
    err = capsys.readouterr().err
    assert "client II, local_train, round 2, step 2: the loss is nan" in err
    assert "lower training.learning_rate" in err
    folder = RunFolder(tmp_path / "tiny" / "fedavg" / "seed-0")
    status = json.loads((folder.path / "status.json").read_text())
    assert status["state"] == "failed"
    assert "round 2, step 2" in status["error"]
    assert folder.load_round().facts["t"] == 1
    monkeypatch.undo()
    assert cli._main(["resume", str(folder.path)]) == 0
    assert folder.status() == "finished"


def test_an_error_that_is_not_ours_is_noted_too(tiny, tmp_path, monkeypatch) -> None:
    import autofedavg.tasks.imaging.segmentation as segmentation

    def broken(self, network, split):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(segmentation.SegmentationSite, "score", broken)
    study = read_study(tiny, only=["fedavg"])
    from autofedavg import Machine

    with pytest.raises(ZeroDivisionError):
        run_study(study, tmp_path, Machine(workers=1))
    folder = tmp_path / "tiny" / "fedavg" / "seed-0"
    assert "ZeroDivisionError" in (folder / "status.json").read_text()


def test_an_error_in_a_worker_arrives_with_its_traceback(tiny, tmp_path, monkeypatch) -> None:
    import autofedavg.tasks.imaging.segmentation as segmentation

    def broken(self, network, split):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(segmentation.SegmentationSite, "score", broken)
    from autofedavg import Machine

    with pytest.raises(AutoFedAvgError, match=r"(?s)a worker failed:.*ZeroDivisionError"):
        run_study(read_study(tiny, only=["fedavg"]), tmp_path, Machine(workers=2))


@pytest.fixture
def finished(tiny, tmp_path):
    """A study folder with one finished row."""
    return run_study(read_study(tiny, ["rounds=1"], only=["fedavg"]), tmp_path)


def test_report_refuses_runs_that_do_not_belong_together(finished, tmp_path, tiny) -> None:
    other = run_study(
        read_study(tiny, ["rounds=1", "task.scale=0.03"], only=["fedavg"]), tmp_path / "other"
    )
    with pytest.raises(RunError, match="the split of the data differs from that of"):
        read_results([finished, other])


def test_report_refuses_repeats_with_other_settings(finished, tiny, tmp_path) -> None:
    other = read_study(tiny, ["rounds=2"], seeds=[1], only=["fedavg"])
    run_study(other, tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"its settings differ from those of .*seed-0, a repeat of"):
        read_results([finished, tmp_path / "elsewhere"])


def test_a_repeat_may_keep_models_that_others_do_not(finished, tiny, tmp_path) -> None:
    """What is kept, and an oracle fitted to it, change no score."""
    kept = read_study(tiny, ["rounds=1", "keep_models=[1]"], seeds=[1], only=["fedavg"])
    run_study(kept, tmp_path / "kept")
    (row,) = read_results([finished, tmp_path / "kept"]).rows
    assert [repeat.seed for repeat in row.repeats] == [0, 1]


def test_report_refuses_the_same_seed_twice(finished, tiny, tmp_path) -> None:
    again = run_study(read_study(tiny, ["rounds=1"], only=["fedavg"]), tmp_path / "again")
    with pytest.raises(RunError, match=r"seed 0 of row 'fedavg' is also in .*the same run is not"):
        read_results([finished, again])


def test_a_row_cannot_change_its_settings_between_seeds(finished, tiny, tmp_path) -> None:
    changed = read_study(tiny, ["rounds=2"], seeds=[1], only=["fedavg"])
    with pytest.raises(RunError, match="row 'fedavg' is in this study folder with other settings"):
        run_study(changed, tmp_path)


def test_what_was_begun_goes_on_as_it_was_begun(finished, tmp_path) -> None:
    """The run's own config.toml decides, not the study's list of rows."""
    folder = RunFolder(finished / "fedavg" / "seed-0")
    folder.set_status("interrupted")
    path = finished / "study.json"
    path.write_text(path.read_text().replace('"rounds": 1', '"rounds": 3'))
    resume(finished)
    assert [line["t"] for line in folder.rounds()] == [1]
    about = json.loads((folder.path / "environment.json").read_text())
    assert [entry["after_round"] for entry in about["resumed"]] == [1]


def test_resume_runs_only_what_was_asked_for(tiny, tmp_path) -> None:
    home = run_study(read_study(tiny, ["rounds=1"], seeds=[0], only=["fedavg"]), tmp_path)
    run_study(read_study(tiny, ["rounds=1"], seeds=[1], only=["n-dirichlet"]), tmp_path)
    resume(home)
    folders = {str(path.parent.relative_to(home)) for path in home.rglob("config.toml")}
    assert folders == {"fedavg/seed-0", "n-dirichlet/seed-1"}


def test_report_notes_a_run_that_moved_to_another_machine(finished) -> None:
    path = finished / "fedavg/seed-0/environment.json"
    about = json.loads(path.read_text())
    about["resumed"] = [{**about, "after_round": 1, "device": "another"}]
    path.write_text(json.dumps(about))
    messages = scores_table(read_results([finished])).notes
    assert "FedAvg, seed 0: resumed on another machine or version." in messages


def test_another_network_in_the_checkpoint_is_refused(finished) -> None:
    folder = RunFolder(finished / "fedavg" / "seed-0")
    folder.set_status("interrupted")
    config = folder.path / "config.toml"
    config.write_text(config.read_text().replace("channels = [4, 8]", "channels = [4, 4]"))
    with pytest.raises(RunError, match="holds another network than the one to be trained"):
        resume(folder.path)


def test_report_refuses_other_volumes_of_the_same_size(finished, tiny, tmp_path) -> None:
    other = read_study(tiny, ["rounds=1", "task.seed=5"], only=["fedavg"])
    with pytest.raises(RunError, match="the data differs from that of"):
        read_results([finished, run_study(other, tmp_path / "other")])


def test_report_refuses_a_folder_of_a_newer_schema(finished) -> None:
    status = finished / "fedavg/seed-0/status.json"
    status.write_text(json.dumps({"schema": 99, "state": "finished"}))
    with pytest.raises(RunError, match=r"newer version \(schema 99\); update autofedavg"):
        read_results([finished])


def test_report_names_a_damaged_folder(finished) -> None:
    (finished / "fedavg/seed-0/environment.json").write_text("{}")
    with pytest.raises(RunError, match=r"this run folder is damaged .*leave it out of the report"):
        read_results([finished])


@pytest.mark.parametrize("file", ["scores.csv", "rounds.jsonl"])
def test_report_refuses_numbers_that_no_run_writes(finished, file) -> None:
    """Finite, and without a mean: earlier versions took them from a site."""
    path = finished / "fedavg/seed-0" / file
    if file == "scores.csv":
        head, *rows = path.read_text().splitlines()
        rows = [",".join([*row.split(",")[:-1], "1.7e308"]) for row in rows]
        path.write_text("\n".join([head, *rows]) + "\n")
    else:
        line = json.loads(path.read_text().splitlines()[0])
        line["learning_loss"] = {"I": [1.7e308] * 20}
        path.write_text(json.dumps(line) + "\n")
    told = "scores.csv: cannot be read" if file == "scores.csv" else "this run folder is damaged"
    with pytest.raises(RunError, match=rf"{told} .* or too large"):
        read_results([finished])


def test_report_refuses_an_unknown_baseline(finished) -> None:
    with pytest.raises(RunError, match="baseline 'x' is not among the runs; choose from: fedavg"):
        read_results([finished], "x")


def test_a_read_only_place_is_told(tiny, tmp_path, monkeypatch) -> None:
    import errno

    from autofedavg.experiment import folder_writer

    def refuse(path, content):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(folder_writer, "write_atomically", refuse)
    with pytest.raises(RunError, match="cannot write: Read-only file system"):
        run_study(read_study(tiny, only=["fedavg"]), tmp_path)
