"""Data of one's own, from the list to the scores, through the command."""

import csv
import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from autofedavg import cli, read_study, run_study
from autofedavg.studies.observer import Observer
from autofedavg.tasks.lists import fingerprint
from volumes import oblique, save_dicom, save_itk, save_nifti

STUDY = """
[study]
name = "own"

[base]
rounds = 4

[base.task]
name = "datalist"
datalist = "data/list.csv"

[base.training]
iterations = 10
batch_size = 4
learning_rate = 2e-3

[[run]]
name = "fedavg"
method = { name = "fedavg" }

[[run]]
name = "auto-fedavg"
method = { name = "auto-fedavg", S = 2, t0 = 1 }
"""

SMALL = "task.pipeline.channels=[4, 8, 8]"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Three hospitals with cameras of their own; a study that says no more than it must."""
    data = tmp_path / "data"
    rows = ["site,image,label"]
    for place, site in enumerate(("Nord", "Süd", "au lait")):
        (data / site).mkdir(parents=True)
        for number in range(8):
            random = np.random.default_rng([place, number])
            size = (40 + 4 * place, 44)
            rows_, columns = np.mgrid[: size[0], : size[1]]
            centre, radius = random.uniform(14, 26, 2), random.uniform(7, 11)
            label = np.hypot(rows_ - centre[0], columns - centre[1]) < radius
            skin = np.array([[190, 150, 130], [150, 120, 110], [200, 180, 120]][place])
            image = np.where(label[..., None], skin * [0.6, 0.35, 0.3], skin)
            image = image + random.normal(0, 8, image.shape)
            pixels = np.clip(image, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(data / site / f"Bild {number}.png")
            Image.fromarray(label.astype(np.uint8) * 255).save(data / site / f"mask {number}.png")
            rows.append(f"{site},{site}/Bild {number}.png,{site}/mask {number}.png")
    (data / "list.csv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


def rounds(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def scores(folder: Path) -> list[dict]:
    with (folder / "scores.csv").open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_coloured_pictures_train_without_any_further_setting(pictures, tmp_path) -> None:
    assert cli._main(["run", str(pictures), "--out", str(tmp_path / "runs")]) == 0
    for row in ("fedavg", "auto-fedavg"):
        folder = tmp_path / "runs" / "own" / row / "seed-0"
        means = [line["validation"]["mean"] for line in rounds(folder)]
        assert max(means[1:]) > means[0] + 0.05
        assert max(means) > 0.7
        tested = [s for s in scores(folder) if s["metric"] == "dice" and s["model"] == "global"]
        assert {s["site"] for s in tested} == {"Nord", "Süd", "au lait"}
        assert len(tested) == 6
        config = tomllib.loads((folder / "config.toml").read_text())
        pipeline = config["task"]["pipeline"]
        assert pipeline["normalise"] == "window"
        assert pipeline["window"] == [0.0, 255.0]
        assert config["task"]["image_channels"] == 3
        assert config["task"]["classes"] == {"255": [255]}
        assert Path(config["task"]["datalist"]).is_absolute()
        assert "roi = [48, 48]  # derived from the data" in (folder / "config.toml").read_text()
    assert (tmp_path / "data" / "list.split-0.json").is_file()


def test_memory_workers_and_prefetch_change_no_bit(pictures, tmp_path) -> None:
    """One process that holds everything, and a worker per site that reads from disk."""
    common = ["run", str(pictures), "--only", "auto-fedavg", "--set", "rounds=2", "--threads", "1"]
    common += ["--set", SMALL]
    one, two = tmp_path / "one", tmp_path / "two"
    assert cli._main([*common, "--workers", "1", "--out", str(one)]) == 0
    disk = ["--set", "task.hold=0.0", "--workers", "3"]
    assert cli._main([*common, *disk, "--out", str(two)]) == 0
    assert outcome(one / "own" / "auto-fedavg" / "seed-0", 2) == outcome(
        two / "own" / "auto-fedavg" / "seed-0", 2
    )


def outcome(folder: Path, last: int) -> dict:
    state = load_file(folder / "checkpoints" / f"last-{last}.safetensors")
    return {
        "state": {name: tensor.numpy().tobytes() for name, tensor in state.items()},
        "scores": (folder / "scores.csv").read_bytes(),
        "rounds": [(line["alpha"], line["loss"], line["validation"]) for line in rounds(folder)],
    }


class Stop(Observer):
    def round(self, seen) -> None:
        if seen.t == 2:
            raise KeyboardInterrupt


def test_a_run_goes_on_with_what_was_worked_out_when_it_began(
    pictures, tmp_path, cache, monkeypatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    only = ["--only", "auto-fedavg", "--set", SMALL, "--out"]
    assert cli._main(["run", str(pictures), *only, str(whole)]) == 0
    with pytest.raises(KeyboardInterrupt):
        run_study(read_study(pictures, [SMALL], only=["auto-fedavg"]), stopped, observer=Stop())
    shutil.rmtree(cache)
    monkeypatch.setattr(fingerprint, "_measure", None)  # the data is not measured again
    monkeypatch.chdir("/")
    folder = stopped / "own" / "auto-fedavg" / "seed-0"
    assert cli._main(["resume", str(folder)]) == 0
    assert outcome(folder, 4) == outcome(whole / "own" / "auto-fedavg" / "seed-0", 4)


def test_a_run_does_not_go_on_with_other_data(pictures, tmp_path, capsys) -> None:
    study = read_study(pictures, [SMALL], only=["fedavg"])
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "runs", observer=Stop())
    folder = tmp_path / "runs" / "own" / "fedavg" / "seed-0"
    drawn = tmp_path / "data" / "list.split-0.json"
    kept, mask = drawn.read_text(), tmp_path / "data" / "Nord" / "mask 0.png"
    drawn.write_text(kept.replace('"train"', '"test"', 1))
    assert cli._main(["resume", str(folder)]) == 3
    assert "the splits of the data have changed since the run started" in " ".join(
        capsys.readouterr().err.split()
    )
    drawn.write_text(kept)
    before = mask.read_bytes()
    Image.fromarray(255 - np.array(Image.open(mask))).save(mask)
    assert cli._main(["resume", str(folder)]) == 3
    assert "the files of the data have changed since the run started" in " ".join(
        capsys.readouterr().err.split()
    )
    mask.write_bytes(before)
    assert cli._main(["resume", str(folder)]) == 0


def test_paths_begin_at_the_study_and_on_the_command_line_where_one_is(
    pictures, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir("/")
    listed = tmp_path / "data" / "list.csv"
    assert read_study(pictures).runs[0].task.datalist == str(listed)
    other = listed.rename(listed.with_name("other.csv"))
    monkeypatch.chdir(tmp_path / "data")
    task = read_study(pictures, ["task.datalist=other.csv"]).runs[0].task
    assert task.datalist == str(other)


@pytest.fixture
def volumes_list(tmp_path) -> Path:
    """NIfTI, NRRD and DICOM, each site with a grid of its own; an organ with a lesion in it."""
    data = tmp_path / "data"
    cases = []
    for place, (site, axes, signs) in enumerate(
        [("nifti", (0, 1, 2), (-1, -1, 1)), ("nrrd", (2, 0, 1), (1, 1, 1)), ("dicom", (0, 1, 2),
         (1, 1, 1))]
    ):  # fmt: skip
        spacing = [(1.0, 1.0, 2.0), (2.0, 1.1, 1.1), (0.9, 0.9, 2.2)][place]
        affine = oblique(spacing, axes, signs)
        for number in range(5):
            random = np.random.default_rng([place, number])
            size = (12, 26, 26) if site == "nrrd" else (28, 28, 12)
            mm = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), -1) * spacing
            centre = np.array(size) * spacing / 2 + random.uniform(-2, 2, 3)
            organ = np.linalg.norm(mm - centre, axis=-1) < 9.5
            lesion = np.linalg.norm(mm - centre - 2, axis=-1) < 4.5
            label = (organ + lesion).astype(np.uint8)
            image = -900 + 950.0 * organ + 250.0 * lesion + random.normal(0, 30, size)
            image = np.round(image).astype(np.int16)
            stem = data / f"{site} {number}"
            if site == "nifti":
                path = save_nifti(stem.with_suffix(".nii.gz"), image, affine)
            elif site == "nrrd":
                path = save_itk(stem.with_suffix(".nrrd"), image, affine)
            else:
                path = save_dicom(stem, image, affine, series=number + 1)
            drawn = save_itk(data / f"{site} {number} drawn.mha", label, affine)
            case = {"site": site, "image": path.name, "label": drawn.name}
            cases.append(case)
    content = {"labels": {"0": "background", "2": "die Läsion", "1": "organ"}, "training": cases}
    (data / "list.json").write_text(json.dumps(content), encoding="utf-8")
    text = STUDY.replace("list.csv", "list.json").replace("iterations = 10", "iterations = 8")
    (tmp_path / "study.toml").write_text(text)
    return tmp_path / "study.toml"


def test_volumes_of_mixed_formats_give_dice_per_class(volumes_list, tmp_path) -> None:
    arguments = ["run", str(volumes_list), "--only", "fedavg", "--out", str(tmp_path / "runs")]
    assert cli._main(arguments) == 0
    folder = tmp_path / "runs" / "own" / "fedavg" / "seed-0"
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    assert config["task"]["classes"] == {"organ": [1], "die Läsion": [2]}
    assert config["task"]["pipeline"]["normalise"] == "window"  # CT
    found = [s for s in scores(folder) if s["model"] == "global"]
    metrics = {s["metric"] for s in found}
    assert metrics == {"dice", "dice:organ", "dice:die Läsion", "label_voxels"}
    assert {s["site"] for s in found} == {"dicom", "nifti", "nrrd"}
    organ = [float(s["value"]) for s in found if s["metric"] == "dice:organ"]
    assert np.mean(organ) > 0.6
    assert cli._main(["resume", str(folder)]) == 0  # its config.toml can be read
    assert cli._main(["check", str(volumes_list)]) == 0


def broken(tmp_path: Path) -> None:
    (tmp_path / "data" / "Nord" / "Bild 0.png").write_bytes(b"\x80\x04nothing")
    (tmp_path / "data" / "Süd" / "mask 3.png").unlink()


def test_everything_wrong_with_the_data_is_told_at_once_with_exit_code_3(
    pictures, tmp_path, capsys
) -> None:
    broken(tmp_path)
    assert cli._main(["run", str(pictures), "--out", str(tmp_path / "runs")]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "2 of 24 cases cannot be used" in said
    assert "it is a pickle, not an image" in said
    assert "mask 3.png: no such file" in said
    assert "remove them from the list of cases" in said


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ("task.datalist=nowhere.csv", 3, "no such data list"),
        ("task.pipeline.roi=[32,32,32]", 2, "roi has 3 sizes, and the images have 2 axes"),
        ("task.pipeline.spacing=[1.0,1.0]", 2, "spacing of some images is unknown"),
        ("task.pipeline.channel=[4,8]", 2, "did you mean channels?"),
        ("task.image_channels=1", 3, "images have 3 channels, and task.image_channels is 1"),
        ('task.classes={ a = [1] }', 3, "its label holds 255"),
        ('task.classes={ a = [1], b = [1] }', 2, "must name every value once"),
        ('task.classes={ a = [] }', 2, "each with a value"),
        ("task.fold=0", 3, "24 cases have no fold"),
        ("task.holdout=0.9", 3, "lower task.holdout"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_its_exit_code(
    pictures, tmp_path, capsys, change, code, said
) -> None:
    arguments = ["run", str(pictures), "--set", change, "--out", str(tmp_path / "runs")]
    assert cli._main(arguments) == code
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("allein,copy.png,mask.png", "allein has 1 patient, and three splits need at least three"),
        ("Süd,copy.png,mask.png", "the same image is in two splits or at two sites"),
        ("Süd,../data/../../copy.png,mask.png", "leads out of"),
        ("Süd,Nord/Bild 0.png,mask.png", "Bild 0.png belongs to Nord/Bild 0 and to Süd/Nord/Bild"),
        ("Süd,copy.png,wide.png", "its grid is 40 x 50, the image's 40 x 44"),
        ("Süd,grey.png,mask.png", "cases differ in axes or channels: 2 axes and 3 channels"),
    ],
)
def test_lines_that_must_not_be_trained_on(pictures, tmp_path, capsys, line, said) -> None:
    data = tmp_path / "data"
    shutil.copy(data / "Nord" / "Bild 0.png", data / "copy.png")
    shutil.copy(data / "Nord" / "mask 0.png", data / "mask.png")
    Image.fromarray(np.zeros((40, 50), np.uint8)).save(data / "wide.png")
    Image.open(data / "Nord" / "Bild 1.png").convert("L").save(data / "grey.png")
    with (data / "list.csv").open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    assert cli._main(["run", str(pictures), "--out", str(tmp_path / "runs")]) == 3
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs" / "own" / "fedavg").exists()
