"""A trained model applied to new images through the command: on their own grid, as it was scored.

The data the models were trained on is gone when they are applied.
"""

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK
import torch
from PIL import Image
from tests_tiny import TINY

import autofedavg
from autofedavg import read_study, run_study
from autofedavg.tasks.imaging.files import read
from folders import model_file
from trained_models import SPACING, dice, picture, scene, scores
from volumes import itk_image, oblique, save_dicom, save_itk, save_nifti

ORIENTATIONS = {
    "RAS": ((0, 1, 2), (1, 1, 1)),
    "LPS": ((0, 1, 2), (-1, -1, 1)),
    "permuted": ((2, 0, 1), (1, -1, 1)),
    "reversed": ((1, 2, 0), (-1, 1, -1)),
}


def voxels(path: Path) -> np.ndarray:
    return np.asanyarray(nibabel.load(path).dataobj)


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.array(picture)


def predicted(say, run: Path, out: Path, *arguments) -> dict:
    """Applies a model through the command; the list it writes."""
    code, _, err = say("predict", run, *arguments, "--out", out)
    assert code == 0, err
    return json.loads((out / "predictions.json").read_text())


def two_channels(folder: Path, seed: int, affine: np.ndarray, order=(0, 1, 2)) -> tuple:
    """A scene as two files, its axes in this order; what to call it, and its label."""
    one, two, label = (np.ascontiguousarray(part.transpose(order)) for part in scene(seed))
    files = [save_nifti(folder / f"{seed}_{k}.nii.gz", v, affine) for k, v in enumerate((one, two))]
    return "|".join(map(str, files)), label


@pytest.mark.parametrize("model", ["global", "local-II"])
def test_the_dice_of_the_files_is_the_dice_of_the_run(say, tiny_trained, tmp_path, model) -> None:
    run = tiny_trained / "n-dirichlet" / "seed-0"
    volumes = read_study(tiny_trained.parent.parent / "tiny.toml").runs[0].task.folder()
    measured = {c: v for (c, metric), v in scores(run, model).items() if metric == "dice"}
    assert len(set(measured.values())) > 2  # something was predicted, and not the same everywhere
    images = [volumes / f"{case}_image.nii.gz" for case in measured]
    listed = predicted(say, run, tmp_path / "out", *images, "--model", model)
    for entry, image in zip(listed["cases"], images, strict=True):
        found, label = (
            tmp_path / "out" / entry["file"],
            Path(str(image).replace("image", "label")),
        )
        case = entry["case"].removesuffix("_image")
        assert dice(voxels(found) == 1, voxels(label) == 1) == measured[case]
        assert entry["voxels"] == {"lesion": int(voxels(found).sum())}


def test_an_ensemble_is_applied_as_it_was_scored(say, tmp_path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY[: TINY.index("[[run]]")].replace(
        'baseline = "fedavg"', "") + '[[run]]\nname = "e"\nmethod = { name = "ensemble" }\n'
    )  # fmt: skip
    study = read_study(tmp_path / "tiny.toml", ["rounds=1"])
    run = run_study(study, tmp_path / "runs") / "e" / "seed-0"
    measured = {c: v for (c, metric), v in scores(run).items() if metric == "dice"}
    volumes = study.runs[0].task.folder()
    images = [volumes / f"{case}_image.nii.gz" for case in measured]
    listed = predicted(say, run, tmp_path / "out", *images)
    assert listed["model"]["checkpoint"] == "best-global"
    for entry, (case, value) in zip(listed["cases"], measured.items(), strict=True):
        label = voxels(volumes / f"{case}_label.nii.gz")
        assert dice(voxels(tmp_path / "out" / entry["file"]) == 1, label == 1) == value


def test_channels_and_classes_without_the_data_the_list_or_a_cache(
    say, scans_run, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    kept, measured = scans_run.parent / "kept", scores(scans_run)
    images = [f"{kept}/{case}_t1.nii.gz|{kept}/{case}_t2.nii.gz" for case in ("north4", "south4")]
    listed = predicted(say, scans_run.parent, tmp_path / "out", *images)
    assert not (scans_run.parent / "data").exists()
    assert not (tmp_path / "cache").exists()
    assert not (scans_run.parent / "cache").exists()
    assert listed["classes"] == {"organ": 1, "lesion": 2}
    for entry, case in zip(listed["cases"], ("north4", "south4"), strict=True):
        found, label = (
            voxels(tmp_path / "out" / entry["file"]),
            voxels(kept / f"{case}_label.nii.gz"),
        )
        assert found.dtype == np.uint8
        for name, number, value in (("organ", 1, 3), ("lesion", 2, 1)):
            assert dice(found == number, label == value) == measured[case, f"dice:{name}"]
            assert entry["voxels"][name] == (found == number).sum()
            ml = (found == number).sum() * np.prod(SPACING) / 1000
            assert entry["ml"][name] == pytest.approx(ml, rel=1e-6)
        assert measured[case, "dice"] > 0.8
        assert entry["image"] == [f"{kept}/{case}_t{k}.nii.gz" for k in (1, 2)]
    facts = json.loads(model_file(scans_run).read_text())
    model = listed["model"]
    assert (model["sha256"], model["round"], model["validation"]) == (
        facts["sha256"],
        facts["t"],
        facts["score"],
    )
    assert model["folder"] == str(scans_run)
    assert {entry["version"] for entry in listed["cases"]} == {autofedavg.__version__}


@pytest.mark.parametrize("tilted", [False, True], ids=["straight", "oblique"])
@pytest.mark.parametrize("axes", ORIENTATIONS)
def test_a_volume_lies_where_its_image_does(say, scans_run, tmp_path, axes, tilted) -> None:
    """Turned, flipped, oblique and anisotropic: the same shape, the same affine, the same place."""
    order, signs = ORIENTATIONS[axes]
    spacing = [SPACING[k] for k in order]
    affine = oblique(spacing, order, signs)
    if not tilted:
        affine = np.eye(4)
        affine[:3, :3] = np.eye(3)[:, list(order)] * np.multiply(spacing, signs)
        affine[:3, 3] = (-31.5, 12.25, 107.0)
    image, label = two_channels(tmp_path, 77, affine, order)
    listed = predicted(say, scans_run, tmp_path / "out", image)
    file = nibabel.load(tmp_path / "out" / listed["cases"][0]["file"])
    before = nibabel.load(image.partition("|")[0])
    assert file.shape == before.shape == label.shape
    assert np.array_equal(file.affine, before.affine)
    for form in ("get_qform", "get_sform"):
        (mine, code), (theirs, wanted) = (
            getattr(header, form)(coded=True) for header in (file.header, before.header)
        )
        assert code == wanted
        assert mine is theirs is None or np.array_equal(mine, theirs)
    found = np.asanyarray(file.dataobj)
    assert dice(found == 1, label == 3) > 0.85
    assert dice(found == 2, label == 1) > 0.8
    assert np.abs(np.argwhere(found > 0).mean(0) - np.argwhere(label > 0).mean(0)).max() < 0.3


def test_only_the_grid_is_taken_over_from_a_header(say, scans_run, tmp_path) -> None:
    """Two transforms that differ, a fourth axis, micrometres; nothing that tells of a patient."""
    one, two, _ = scene(5)
    affine = oblique(np.multiply(SPACING, 1000.0))
    image = nibabel.Nifti2Image(np.stack([one, two.astype(np.float32)], axis=-1), None)
    image.header.set_xyzt_units("micron", "sec")
    image.set_sform(affine, 4)
    image.set_qform(oblique(np.multiply(SPACING, 1000.0), origin=(1.0, 2.0, 3.0)), 2)
    image.header["descrip"] = b"Doe, Jane"
    image.header["cal_max"] = 900
    nibabel.save(image, tmp_path / "a.b.nii")
    listed = predicted(say, scans_run, tmp_path / "out", tmp_path / "a.b.nii")
    assert [entry["file"] for entry in listed["cases"]] == ["a.b.nii.gz"]
    made, before = nibabel.load(tmp_path / "out" / "a.b.nii.gz"), nibabel.load(tmp_path / "a.b.nii")
    assert isinstance(made, nibabel.Nifti2Image)
    assert made.shape == one.shape
    assert made.header.get_xyzt_units() == ("micron", "sec")
    for form in ("get_qform", "get_sform"):
        (mine, code), (theirs, wanted) = (
            getattr(header, form)(coded=True) for header in (made.header, before.header)
        )
        assert code == wanted > 0
        assert np.array_equal(mine, theirs)
    assert np.array_equal(made.header.get_zooms(), before.header.get_zooms()[:3])
    assert made.header["descrip"] == b""
    assert made.header["cal_max"] == 0
    assert b"Doe" not in made.to_bytes()
    found = np.asanyarray(made.dataobj)
    ml = (found == 1).sum() * np.prod(SPACING) / 1000
    assert listed["cases"][0]["ml"]["organ"] == pytest.approx(ml, rel=1e-4)
    assert ml > 1


@pytest.mark.parametrize("tilted", [False, True], ids=["straight", "oblique"])
@pytest.mark.parametrize("kind", ["dicom", "one slice of it", "nrrd", "mha"])
def test_other_formats_give_the_same_volume_as_nifti(
    say, tmp_path, tiny_trained, kind, tilted
) -> None:
    """The same voxels at the same place, to what the format's own numbers hold."""
    run = tiny_trained / "fedavg" / "seed-0"
    volumes = read_study(tiny_trained.parent.parent / "tiny.toml").runs[0].task.folder()
    values = voxels(next(volumes.glob("I-*_image.nii.gz")))
    affine = oblique((1.0, 1.1, 2.5)) if tilted else np.diag([-1.0, -1.25, 2.5, 1.0])
    nifti = save_nifti(tmp_path / "nifti.nii.gz", values, affine)
    if kind in ("nrrd", "mha"):
        path = save_itk(tmp_path / f"other.{kind}", values, affine)
    else:
        folder = save_dicom(tmp_path / "other", values, affine)
        path = folder if kind == "dicom" else sorted(folder.iterdir())[3]
    listed = predicted(say, run, tmp_path / "out", path, nifti)
    mine, theirs = (nibabel.load(tmp_path / "out" / e["file"]) for e in listed["cases"])
    assert mine.shape == theirs.shape == values.shape
    assert np.abs(mine.affine - affine).max() < 1e-4
    assert np.array_equal(mine.affine, np.asarray(read([path]).affine, np.float32))
    assert int(mine.header["sform_code"]) == 1
    assert mine.header.get_xyzt_units()[0] == "mm"
    one, two = (np.asanyarray(image.dataobj) for image in (mine, theirs))
    assert 0.01 < one.mean() < 0.99
    # An oblique grid is resampled from a corner that the last digits of its affine decide.
    assert (one != two).mean() < (0.02 if tilted else 1e-9)


def test_pictures_come_back_as_grey_pictures_of_their_size(say, pictures_run, tmp_path) -> None:
    kept, measured = pictures_run.parent / "kept", scores(pictures_run)
    images = [kept / f"{case}.png" for case in ("north4", "south4")]
    listed = predicted(say, pictures_run, tmp_path / "out", *images)
    for entry, image in zip(listed["cases"], images, strict=True):
        found = pixels_of(tmp_path / "out" / entry["file"])
        assert entry["file"] == image.name
        assert found.shape == pixels_of(image).shape[:2]
        assert found.dtype == np.uint8
        label = pixels_of(kept / f"{image.stem}_label.png")
        assert dice(found == 1, label == 1) == measured[image.stem, "dice"] > 0.9
        assert entry["ml"] is None
        assert entry["voxels"] == {"1": int(found.sum())}


def test_flat_images_of_every_format_give_the_same_pixels(say, pictures_run, tmp_path) -> None:
    """TIFF, a picture on its side, one slice of NIfTI, NRRD and DICOM: rows stay rows."""
    pixels, spot = picture(42)
    Image.fromarray(pixels).save(tmp_path / "plain.tiff")
    turned = Image.fromarray(np.rot90(pixels))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    turned.save(tmp_path / "turned.png", exif=exif)
    columns = pixels.transpose(1, 0, 2)
    affine = oblique((0.5, 0.5, 3.0))
    save_nifti(tmp_path / "sheet.nii", columns[:, :, None, :], None)
    channels = []
    for k in range(3):
        path = tmp_path / f"slice-{k}.nrrd"
        save_itk(path, np.ascontiguousarray(columns[:, :, k : k + 1]), affine)
        channels.append(str(path))
    flat = SimpleITK.GetImageFromArray(pixels, isVector=True)
    SimpleITK.WriteImage(flat, str(tmp_path / "flat.mha"))
    series = [
        save_dicom(tmp_path / f"series-{k}", columns[:, :, k : k + 1], affine, series=k + 1)
        for k in range(3)
    ]
    images = [
        tmp_path / "plain.tiff", tmp_path / "turned.png", tmp_path / "sheet.nii",
        "|".join(channels), tmp_path / "flat.mha", "|".join(map(str, series)),
    ]  # fmt: skip
    listed = predicted(say, pictures_run, tmp_path / "out", *images)
    files = [entry["file"] for entry in listed["cases"]]
    assert files == [
        "plain.png", "turned.png", "sheet.nii.gz", "slice-0.nii.gz", "flat.png", "series-0.nii.gz",
    ]  # fmt: skip
    reference = pixels_of(tmp_path / "out" / "plain.png")
    assert dice(reference == 1, spot == 1) > 0.9
    for file in files[1:]:
        if file.endswith(".png"):
            found = pixels_of(tmp_path / "out" / file)
        else:
            made = nibabel.load(tmp_path / "out" / file)
            assert made.shape == (40, 30, 1)
            found = np.asanyarray(made.dataobj)[:, :, 0].T
        assert np.array_equal(found, reference), file
    for file, known in (("slice-0.nii.gz", [0, 1, 2, 3]), ("series-0.nii.gz", [0, 1, 3])):
        off = np.abs(nibabel.load(tmp_path / "out" / file).affine - affine)
        assert off[:, known].max() < 1e-4  # a lone DICOM slice does not say where the next would be
    assert np.array_equal(
        nibabel.load(tmp_path / "out" / "sheet.nii.gz").affine,
        nibabel.load(tmp_path / "sheet.nii").affine,
    )


def test_the_same_call_writes_the_same_bytes_and_python_does_as_the_command(
    say, scans_run, tmp_path
) -> None:
    image, _ = two_channels(tmp_path, 3, oblique(SPACING))
    listed = predicted(say, scans_run, tmp_path / "one", image)
    paths = [Path(part) for part in image.split("|")]
    made = autofedavg.predict(scans_run, [paths], tmp_path / "two")
    joined = autofedavg.predict(str(scans_run), image, tmp_path / "three")
    assert [one.voxels for one in joined] == [one.voxels for one in made]
    assert [one.case for one in made] == [entry["case"] for entry in listed["cases"]]
    assert dict(made[0].voxels) == listed["cases"][0]["voxels"]
    name = made[0].file
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_space_that_is_unknown_stays_unknown(say, scans_run, tmp_path, pictures_run) -> None:
    """A NIfTI file without transforms gets none; a NRRD file without them is refused here."""
    one, two, _ = scene(9)
    plain = SimpleITK.GetImageFromArray(one.transpose(2, 1, 0))
    SimpleITK.WriteImage(plain, str(tmp_path / "plain.nrrd"))
    placed = itk_image(two, oblique(SPACING))
    SimpleITK.WriteImage(placed, str(tmp_path / "placed.nrrd"))
    code, _, err = say(
        "predict", scans_run, f"{tmp_path}/plain.nrrd|{tmp_path}/plain.nrrd", "--out", tmp_path
    )
    assert code == 3
    assert "its voxel spacing is unknown, and the model sees images at 1.5 x 1.5 x 2.5 mm" in err
    pixels = picture(1)[0].transpose(1, 0, 2)[:, :, None, :]
    image = nibabel.Nifti1Image(pixels, None)
    nibabel.save(image, tmp_path / "sheet.nii")
    predicted(say, pictures_run, tmp_path / "out", tmp_path / "sheet.nii")
    made = nibabel.load(tmp_path / "out" / "sheet.nii.gz")
    assert int(made.header["sform_code"]) == int(made.header["qform_code"]) == 0
    assert np.array_equal(made.affine, nibabel.load(tmp_path / "sheet.nii").affine)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_what_the_cpu_finds(say, scans_run, tmp_path) -> None:
    image, label = two_channels(tmp_path, 8, oblique(SPACING))
    files = []
    for device in ("cpu", "cuda"):
        listed = predicted(say, scans_run, tmp_path / device, image, "--device", device)
        assert listed["cases"][0]["device"] == device
        files.append(voxels(tmp_path / device / listed["cases"][0]["file"]))
    assert (files[0] != files[1]).mean() < 1e-3
    assert dice(files[1] == 1, label == 3) > 0.85
