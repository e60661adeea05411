"""The folder of predictions: nothing is overwritten unasked, nothing is half there, calls go on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from autofedavg import LoaderSite, Training, federate
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.inference import predictions
from autofedavg.tasks.imaging import segmenter
from autofedavg.tasks.imaging.segmenter import ImageSegmenter
from folders import model_file
from trained_models import SPACING, picture, scene
from volumes import oblique, save_dicom, save_itk, save_nifti


@pytest.fixture
def images(tmp_path) -> list[Path]:
    """Four pictures."""
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        Image.fromarray(picture(50 + number)[0]).save(path)
    return paths


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.*") if path.name != ".lock"}


def listed(folder: Path) -> list[str]:
    return [case["file"] for case in json.loads((folder / "predictions.json").read_text())["cases"]]


def count_calls(monkeypatch, stop_at: int | None = None) -> list[str]:
    """Notes every image that is segmented; Ctrl-C comes at one of them."""
    seen, segment = [], ImageSegmenter.segment

    def noted(self, network, image):
        if len(seen) == stop_at:
            raise KeyboardInterrupt
        seen.append(image[0].name)
        return segment(self, network, image)

    monkeypatch.setattr(ImageSegmenter, "segment", noted)
    return seen


def test_an_interrupted_call_keeps_what_is_finished_and_goes_on(
    say, pictures_run, images, tmp_path, monkeypatch
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert say("predict", pictures_run, *images, "--out", whole)[0] == 0
    with monkeypatch.context() as patch:
        assert count_calls(patch, stop_at=2) == []
        code, printed, err = say("predict", pictures_run, *images, "--out", out)
        assert (code, printed) == (130, "")
        assert "finished cases are kept; the same command continues" in err
    assert listed(out) == ["0.png", "1.png"]
    assert sorted(contents(out)) == ["0.png", "1.png", "predictions.json"]
    seen = count_calls(monkeypatch)
    code, printed, _ = say("predict", pictures_run, *images, "--out", out)
    assert code == 0
    assert seen == ["2.png", "3.png"]
    assert len(printed.splitlines()) == 4
    assert contents(out) == contents(whole)
    assert say("predict", pictures_run, *images, "--out", out)[0] == 0
    assert len(seen) == 2  # all was finished


KILLED = """
import os, sys
from pathlib import Path
from autofedavg import predict
from autofedavg.tasks.imaging.segmenter import ImageSegmenter
from autofedavg.inference import predictions
predictions.EVERY = {every}
segment, seen = ImageSegmenter.segment, []
def killed(self, network, image):
    if len(seen) == 2:
        os._exit(9)
    seen.append(image)
    return segment(self, network, image)
ImageSegmenter.segment = killed
predict(*sys.argv[1:2], sys.argv[3:], sys.argv[2])
"""


@pytest.mark.parametrize(("every", "kept"), [("1e9", 0), ("-1.0", 2)], ids=["unlisted", "listed"])
def test_a_killed_call_leaves_nothing_that_is_half_there(
    say, pictures_run, images, tmp_path, every, kept
) -> None:
    """What is not listed yet has no name yet, so that it is in nobody's way."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert say("predict", pictures_run, *images, "--out", whole)[0] == 0
    arguments = [str(argument) for argument in (pictures_run, out, *images)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(every=every), *arguments], timeout=120, check=False
    )
    assert done.returncode == 9
    assert len(listed(out)) == len([*out.glob("*.png")]) == kept
    assert len([*out.glob("*.part")]) == 2 - kept
    assert say("predict", pictures_run, *images, "--out", out)[0] == 0
    assert contents(out) == contents(whole)


def test_what_exists_is_only_replaced_when_asked(say, pictures_run, images, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "1.png").write_bytes(b"mine")
    code, _, err = say("predict", pictures_run, *images, "--out", out)
    assert code == 1
    assert "predictions exist already, of other images or not listed (1.png)" in err
    assert "--overwrite" in err
    assert (out / "1.png").read_bytes() == b"mine"
    assert not (out / "0.png").exists()
    assert say("predict", pictures_run, *images, "--out", out, "--overwrite")[0] == 0
    assert (out / "1.png").read_bytes() != b"mine"
    before = contents(out)
    assert say("predict", pictures_run, images[2], "--out", out, "--overwrite")[0] == 0
    assert sorted(listed(out)) == ["0.png", "1.png", "2.png", "3.png"]
    assert {name: b for name, b in contents(out).items() if name != "predictions.json"} == {
        name: b for name, b in before.items() if name != "predictions.json"
    }


def test_an_image_that_has_changed_is_not_taken_for_finished(
    say, pictures_run, images, tmp_path
) -> None:
    out = tmp_path / "out"
    assert say("predict", pictures_run, *images, "--out", out)[0] == 0
    Image.fromarray(picture(99)[0]).save(images[1])
    code, _, err = say("predict", pictures_run, *images, "--out", out)
    assert code == 1
    assert "(1.png)" in err
    (tmp_path / "elsewhere").mkdir()
    other = shutil.copy2(images[2], tmp_path / "elsewhere" / "2.png")
    code, _, err = say("predict", pictures_run, other, "--out", out)
    assert code == 1
    assert "(2.png)" in err


def test_a_folder_holds_the_predictions_of_one_model(say, pictures_run, images, tmp_path) -> None:
    out = tmp_path / "out"
    local = ["--model", "local-north"]
    assert say("predict", pictures_run, *images, "--out", out)[0] == 0
    code, _, err = say("predict", pictures_run, *images, "--out", out, *local)
    assert code == 1
    assert "it holds predictions of another model (0.png, 1.png, 2.png, 3.png)" in err
    code, _, err = say("predict", pictures_run, images[0], "--out", out, *local, "--overwrite")
    assert code == 1
    assert "of another model for images that are not named now (1.png, 2.png, 3.png)" in err
    assert len(contents(out)) == 5
    assert say("predict", pictures_run, *images, "--out", out, *local, "--overwrite")[0] == 0
    content = json.loads((out / "predictions.json").read_text())
    assert content["model"]["checkpoint"] == "best-local-north"
    assert len(content["cases"]) == 4


def test_a_checkpoints_file_is_the_same_model(say, pictures_run, images, tmp_path) -> None:
    file = model_file(pictures_run, "best-local-south", "safetensors")
    assert say("predict", file, images[0], "--out", tmp_path / "one")[0] == 0
    asked = ["--model", "local-south"]
    assert say("predict", pictures_run, images[0], *asked, "--out", tmp_path / "two")[0] == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("linked", [False, True])
def test_no_image_is_ever_written_over(say, pictures_run, images, tmp_path, linked) -> None:
    before, out = contents(tmp_path), tmp_path
    if linked:
        out = tmp_path / "out"
        out.mkdir()
        (out / "1.png").symlink_to(images[1])
    code, _, err = say("predict", pictures_run, *images, "--out", out, "--overwrite")
    assert code == 2
    assert "a prediction would be written over this image; write elsewhere with --out" in err
    assert contents(tmp_path) == before


def test_two_processes_do_not_write_one_folder(say, pictures_run, images, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with RunFolder(out).lock():
        code, _, err = say("predict", pictures_run, *images, "--out", out)
    assert code == 1
    assert "another process is writing predictions here" in err


def test_names_that_repeat_are_told_apart_by_their_folders(say, tmp_path, tiny_trained) -> None:
    affine = np.diag([1.0, 1.0, 2.5, 1.0])
    for number, patient in enumerate(("A", "B")):
        values = np.random.default_rng(number).normal(0, 100, (20, 20, 10))
        save_dicom(tmp_path / patient / "CT", values, affine, series=number + 1)
    series = [tmp_path / patient / "CT" for patient in ("A", "B")]
    run, out = tiny_trained / "fedavg" / "seed-0", tmp_path / "out"
    assert say("predict", run, *series, "--out", out)[0] == 0
    assert listed(out) == ["A_CT.nii.gz", "B_CT.nii.gz"]


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_told(
    say, pictures_run, images, tmp_path, where
) -> None:
    (tmp_path / "file").touch()
    code, _, err = say("predict", pictures_run, images[0], "--out", tmp_path / where)
    assert code == 1
    assert "cannot write: " in err
    assert "make it writable, then the same command continues" in err


def test_a_full_disk_keeps_what_is_finished(
    say, pictures_run, images, tmp_path, monkeypatch
) -> None:
    fsync, calls = os.fsync, []

    def full(descriptor):
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if name == "2.png.part":
            raise OSError(28, "No space left on device")
        calls.append(name)
        fsync(descriptor)

    monkeypatch.setattr(predictions.os, "fsync", full)
    code, _, err = say("predict", pictures_run, *images, "--out", tmp_path / "out")
    assert code == 1
    assert "No space left on device; make room, then the same command continues" in err
    monkeypatch.undo()
    assert listed(tmp_path / "out") == ["0.png", "1.png"]
    assert say("predict", pictures_run, *images, "--out", tmp_path / "out")[0] == 0
    assert len(listed(tmp_path / "out")) == 4


def test_a_bad_image_is_told_in_the_end_and_spoils_no_other(say, scans_run, tmp_path) -> None:
    """What only the voxels tell: the others are predicted all the same."""
    affine = oblique(SPACING)
    cases = []
    for number in range(3):
        one, two, _ = scene(number)
        if number == 1:
            one[3, 4, 5] = np.nan
        files = [
            save_nifti(tmp_path / f"c{number}_{k}.nii.gz", v, affine)
            for k, v in enumerate((one, two))
        ]
        cases.append("|".join(map(str, files)))
    cut = tmp_path / "c2_1.nii.gz"
    cut.write_bytes(cut.read_bytes()[:-2000])
    code, out, err = say("predict", scans_run, *cases, "--out", tmp_path / "out")
    assert (code, out) == (3, "")
    assert "2 of 3 images cannot be used" in err
    assert f"{tmp_path}/c1_0.nii.gz: it holds numbers that are not finite; export" in err
    assert f"{cut}: cannot be read" in err
    assert "the predictions of the others are written; mend these" in err
    assert listed(tmp_path / "out") == ["c0_0.nii.gz"]
    code, _, err = say("predict", scans_run, *cases[1:], "--out", tmp_path / "none")
    assert (code, "2 of 2 images cannot be used" in err) == (3, True)
    assert "none is written; mend these" in err
    code, _, err = say("predict", scans_run, cases[1], "--out", tmp_path / "alone")
    assert (code, err) == (
        3,
        f"error: {tmp_path}/c1_0.nii.gz: it holds numbers that are not finite; "
        "export the image again\n",
    )


@pytest.fixture
def unfit(tmp_path) -> dict[str, str]:
    """Images that headers tell are not for the model on two-channel volumes."""
    one, two, _ = scene(0)
    affine = oblique(SPACING)
    here = str(tmp_path)
    save_nifti(tmp_path / "one.nii.gz", one, affine)
    save_nifti(tmp_path / "two.nii.gz", two, affine)
    save_nifti(tmp_path / "small.nii.gz", two[:-1], affine)
    save_nifti(tmp_path / "slice.nii.gz", one[:, :, :1], affine)
    save_itk(tmp_path / "away.nrrd", two, oblique(SPACING, origin=(0, 0, 0)))
    nibabel.save(nibabel.Nifti1Image(one, None), tmp_path / "bare.nii")
    (tmp_path / "text.nii.gz").write_text("nothing")
    (tmp_path / "notes.docx").write_text("nothing")
    (tmp_path / "empty").mkdir()
    save_dicom(tmp_path / "damaged", two, affine)
    (tmp_path / "damaged" / "1-990.dcm").write_bytes(b"nothing")
    Image.fromarray(picture(0)[0]).save(tmp_path / "picture.png")
    return {
        "missing": f"{here}/nowhere.nii.gz|{here}/two.nii.gz",
        "unreadable": f"{here}/text.nii.gz|{here}/two.nii.gz",
        "unknown": f"{here}/notes.docx",
        "empty": f"{here}/empty|{here}/two.nii.gz",
        "damaged": f"{here}/damaged|{here}/two.nii.gz",
        "few": f"{here}/one.nii.gz",
        "many": f"{here}/one.nii.gz|{here}/two.nii.gz|{here}/two.nii.gz",
        "flat": f"{here}/picture.png",
        "slice": f"{here}/slice.nii.gz",
        "grids": f"{here}/one.nii.gz|{here}/small.nii.gz",
        "apart": f"{here}/one.nii.gz|{here}/away.nrrd",
        "bare": f"{here}/bare.nii|{here}/bare.nii",
    }


SAID = {
    "missing": "nowhere.nii.gz: no such file; correct the path",
    "unreadable": "text.nii.gz: cannot be read",
    "unknown": "notes.docx: unknown image format *.docx; use a folder of DICOM files",
    "empty": "empty: no DICOM series found; name a folder of DICOM files",
    "damaged": "damaged: cannot be read (not readable as DICOM: 1-990.dcm)",
    "few": "one.nii.gz: it has 1 channel, and the model was trained on 2 channels; join the files "
    "of one case with '|'",
    "many": "one.nii.gz: it has 3 channels, and the model was trained on 2 channels; name the",
    "flat": "picture.png: it is a flat image, and the model was trained on volumes; name volumes",
    "slice": "slice.nii.gz: it is a flat image, and the model was trained on volumes",
    "grids": "small.nii.gz: its grid differs from that of one.nii.gz; resample",
    "apart": "away.nrrd: its grid differs from that of one.nii.gz; resample",
    "bare": "bare.nii: its voxel spacing is unknown, and the model sees images at 1.5 x 1.5 x 2.5 "
    "mm; write the spacing into the file",
}


@pytest.mark.parametrize("which", SAID)
def test_what_headers_tell_is_told_before_anything_is_predicted(
    say, scans_run, unfit, tmp_path, which, monkeypatch
) -> None:
    monkeypatch.setattr(segmenter, "predict", None)
    code, out, err = say("predict", scans_run, unfit[which], "--out", tmp_path / "out")
    assert (code, out) == (3, "")
    assert SAID[which] in err
    assert err.startswith("error: ")
    assert not (tmp_path / "out").exists()


def test_all_bad_images_are_told_at_once(say, scans_run, unfit, tmp_path) -> None:
    names = ["missing", "unreadable", "unknown", "damaged", "flat"]
    images = [f"{tmp_path}/one.nii.gz|{tmp_path}/two.nii.gz", *(unfit[name] for name in names)]
    code, _, err = say("predict", scans_run, *images, "--out", tmp_path / "out")
    assert code == 3
    assert "5 of 6 images cannot be used" in err
    for name in names:
        assert SAID[name] in err
    assert "nothing has been predicted" in err
    assert not (tmp_path / "out").exists()


def test_a_volume_is_refused_by_a_model_of_pictures(say, pictures_run, tmp_path) -> None:
    path = save_nifti(tmp_path / "v.nii.gz", scene(0)[0], oblique(SPACING))
    code, _, err = say("predict", pictures_run, path, "--out", tmp_path / "out")
    assert code == 3
    assert "it is a volume of 26 x 24 x 14 voxels, and the model was trained on flat images" in err
    grey = tmp_path / "grey.png"
    Image.fromarray(picture(0)[0][..., 0]).save(grey)
    code, _, err = say("predict", pictures_run, grey, "--out", tmp_path / "out")
    assert code == 3
    assert "it has 1 channel, and the model was trained on 3 channels" in err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["{run}", "{png}", "--model", "local-nort"], 1, "did you mean local-north?"),
        (["{run}", "{png}", "--device", "abacus"], 2, "'abacus' cannot be used"),
        (["{run}", "{png}", "{png}"], 2, "0.png: it is named twice; name every image once"),
        (["{run}", " | "], 2, "an image without a name"),
        (["{run}/checkpoints/last-3.safetensors", "{png}"], 1, "is no model of a run folder"),
        (["{model}", "{png}", "--model", "local-north"], 2,
         "the file of one is named; name the run folder instead"),
        (["{home}/nowhere", "{png}"], 1, "no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_told(
    say, pictures_run, images, tmp_path, arguments, code, text
) -> None:
    known = {"run": pictures_run, "png": images[0], "home": tmp_path}
    known |= {"model": model_file(pictures_run)}
    told = say("predict", *(a.format(**known) for a in arguments), "--out", tmp_path / "out")
    assert told[:2] == (code, "")
    assert text in told[2]
    assert not (tmp_path / "out").exists()


def test_half_written_and_damaged_runs_are_told(say, pictures_run, images, tmp_path) -> None:
    run = tmp_path / "run"
    ask = ["predict", run, images[0], "--out", tmp_path / "out"]

    def fresh() -> Path:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(pictures_run, run)
        return run / "checkpoints"

    for path in fresh().glob("best-*"):
        path.unlink()
    code, _, err = say(*ask)
    assert (code, "let the run go on until a model is selected" in err) == (1, True)
    model_file(fresh().parent, ending="safetensors").unlink()
    code, _, err = say(*ask)
    assert (code, "this checkpoint cannot be read" in err) == (1, True)
    # A finished run is not run again, so its other models must not be deleted.
    assert "or run this row again with another --out" in " ".join(err.split())
    assert "delete" not in err
    tensors = model_file(fresh().parent, ending="safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-4] + b"\0\0\0\0")
    code, _, err = say(*ask)
    assert (code, "its contents do not match their hash" in err) == (1, True)
    fresh()
    config = run / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("channels = [6, 12]", "channels = [6, 10]"))
    code, _, err = say(*ask)
    assert (code, "another network than its run's settings make" in err) == (1, True)
    config.write_text(text[: len(text) // 2])
    code, _, err = say(*ask)
    assert code in (1, 2)
    assert err.startswith(f"error: {run}")
    config.unlink()
    code, _, err = say(*ask)
    assert (code, "no run in this folder" in err) == (1, True)
    assert not (tmp_path / "out").exists()


def test_a_model_trained_from_python_is_refused(say, images, tmp_path) -> None:
    cases = torch.utils.data.TensorDataset(torch.randn(8, 2), torch.zeros(8, dtype=torch.long))
    loader = torch.utils.data.DataLoader(cases, batch_size=4)
    federate(
        network=lambda: torch.nn.Linear(2, 2),
        loss=lambda network, batch: torch.nn.functional.cross_entropy(network(batch[0]), batch[1]),
        score=lambda network, batch: (network(batch[0]).argmax(1) == batch[1]).float(),
        sites={name: LoaderSite(loader, loader, loader) for name in "AB"},
        method="fedavg",
        training=Training(epochs=1),
        rounds=1,
        out=tmp_path / "run",
    )
    code, _, err = say("predict", tmp_path / "run", images[0], "--out", tmp_path / "out")
    assert code == 1
    assert "this model was trained from Python" in err
    assert "build the network yourself" in err


def test_json_is_for_programs(say, pictures_run, images, tmp_path) -> None:
    out = tmp_path / "out"
    code, printed, _ = say("predict", pictures_run, *images[:2], "--out", out, "--json")
    assert code == 0
    told = json.loads(printed)
    assert told["folder"] == str(out)
    assert told["cases"] == json.loads((out / "predictions.json").read_text())["cases"]
    _, printed, _ = say("predict", pictures_run, *images[:2], "--out", out)
    count = told["cases"][0]["voxels"]["1"]
    assert printed.splitlines()[0] == f"{out}/0.png: 1 {count} voxels"
