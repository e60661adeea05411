"""What is exported segments volumes elsewhere as this package does: the guide's program, MONAI."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, run, verify_net_in_out
from monai.data.utils import compute_importance_map

from autofedavg.experiment.config import parse_run
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.recipe import recipe
from models import CLASSES, datalist, lively, run_folder, save, volume_case

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "export-a-model.md"
OTHERS = {
    "window": {},
    "cropped": {"crop": True},
    "zscore, cropped": {"normalise": "zscore", "crop": True},
    "percentiles": {"normalise": "percentiles"},
    "its own grid": {"spacing": "keep"},
    "smaller than a window": {"roi": [64, 16, 64]},
}


def trained(home: Path, **pipeline):
    """A run folder, a case, and what this package predicts for it with every class in it."""
    task = datalist(home, **pipeline)
    folder, network = run_folder(home / "run", task)
    case = volume_case(home, empty=-500 if "normalise" not in pipeline else 0)
    made = parse_run({"name": "row", "task": task, "method": {"name": "fedavg"}}, "test").task
    found = lively(network.eval(), made, case, home)
    assert torch.bincount(found.flatten(), minlength=3).min() > 500
    return save(folder, network), case, found


def agrees(path: Path, image: Path, found: torch.Tensor) -> None:
    """The written label lies where the image does, and no more than single voxels differ."""
    written, own = nibabel.load(path), nibabel.load(image)
    np.testing.assert_allclose(written.affine, own.affine, atol=1e-5)
    label = torch.from_numpy(np.asarray(written.dataobj).astype(np.uint8))
    assert label.shape == found.shape
    for number in range(1, len(CLASSES) + 1):
        one, two = label == number, found == number
        assert 2 * (one & two).sum() / (one.sum() + two.sum()) > 0.999


@pytest.fixture
def program(tmp_path):
    """The guide's program, run where this package cannot be imported."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "segment.py").write_text(code)
    (tmp_path / "autofedavg.py").write_text("raise ImportError('not installed here')")

    def segment(*arguments) -> None:
        done = subprocess.run(
            [sys.executable, tmp_path / "segment.py", *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr

    return segment


@pytest.mark.parametrize("pipeline", OTHERS.values(), ids=list(OTHERS))
def test_the_guides_program_segments_as_this_package_does(say, tmp_path, program, pipeline):
    home, case, found = trained(tmp_path / "home", **pipeline)
    assert say("export-model", home, "--out", tmp_path / "out")[0] == 0
    program(tmp_path / "out", case.image[0], tmp_path / "label.nii.gz")
    agrees(tmp_path / "label.nii.gz", case.image[0], found)


def test_the_guides_program_takes_onnx(say, tmp_path, program):
    home, case, found = trained(tmp_path / "home")
    assert say("export-model", home, "--out", tmp_path / "out", "--format", "onnx")[0] == 0
    program(tmp_path / "out", case.image[0], tmp_path / "label.nii.gz")
    agrees(tmp_path / "label.nii.gz", case.image[0], found)


def parser(root: Path, **changes: str) -> ConfigParser:
    made = ConfigParser()
    made.read_config(root / "configs" / "inference.json")
    made.read_meta(root / "configs" / "metadata.json")
    made.update({"bundle_root": str(root), **changes})
    return made


@pytest.mark.parametrize("name", ["window", "cropped", "its own grid"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_bundle_segments_as_this_package_does(say, tmp_path, name):
    home, case, found = trained(tmp_path / "home", **OTHERS[name])
    root, scans, labels = (tmp_path / folder for folder in ("bundle", "scans", "labels"))
    code, told, _ = say("export-model", home, "--out", root, "--format", "bundle", "--json")
    assert code == 0
    assert {*json.loads(told)["files"]} == {
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()
    }
    scans.mkdir()
    case.image[0].rename(scans / "case.nii.gz")
    told = parser(root, dataset_dir=str(scans), output_dir=str(labels))
    told.get_parsed_content("run")
    agrees(labels / "case_label.nii.gz", scans / "case.nii.gz", found)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_monai_runs_a_bundle_and_finds_its_metadata_true(say, tmp_path):
    home, case, found = trained(tmp_path / "home")
    root = tmp_path / "bundle"
    say("export-model", home, "--out", root, "--format", "bundle")
    files = {
        "config_file": str(root / "configs" / "inference.json"),
        "meta_file": str(root / "configs" / "metadata.json"),
        "bundle_root": str(root),
    }
    verify_net_in_out(net_id="network_def", **files)
    (root / "images").mkdir()
    case.image[0].rename(root / "images" / "case.nii.gz")
    with warnings.catch_warnings():
        # MONAI warns of every config that it runs, and that no logging file is named.
        warnings.simplefilter("ignore", UserWarning)
        run(**files)
    agrees(root / "labels" / "case_label.nii.gz", root / "images" / "case.nii.gz", found)
    readme = (root / "docs" / "README.md").read_text()
    assert "- 1: inner" in readme
    assert "padded with 0" in readme


def test_names_of_classes_are_never_run_as_code(say, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = datalist(tmp_path) | {"classes": {"$open('hacked', 'w')": [1], "@run": [2]}}
    folder, network = run_folder(tmp_path / "run", task)
    root = tmp_path / "bundle"
    say("export-model", save(folder, network), "--out", root, "--format", "bundle")
    named = parser(root).get_parsed_content("_meta_#network_data_format#outputs#pred#channel_def")
    assert named == {"0": "background", "1": "'$open('hacked', 'w')'", "2": "'@run'"}
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({"normalise": "zscore"}, "no transform that normalises as this model's 'zscore'"),
        ({"normalise": "percentiles"}, "as this model's 'percentiles'"),
        ({"roi": [16, 24], "spacing": "keep"}, "a bundle is for volumes"),
        (None, "a bundle is for volumes"),
    ],
)
def test_what_monai_cannot_do_is_no_bundle(say, tmp_path, task, text):
    made = {"name": "cifar10", "clients": 3} if task is None else datalist(tmp_path, **task)
    folder, network = run_folder(tmp_path / "run", made)
    root = tmp_path / "bundle"
    code, _, talk = say("export-model", save(folder, network), "--out", root, "--format", "bundle")
    assert code == 2
    assert text in talk
    assert "use --format torchscript or onnx" in talk
    assert not root.exists()


@pytest.mark.parametrize("roi", [(16, 16, 8), (48, 24, 40), (64, 32)])
def test_the_weights_of_a_window_are_the_ones_told(roi):
    spacing = "keep" if len(roi) == 2 else (1.0, 1.0, 1.0)
    told = recipe(Pipeline(roi=roi, channels=(4, 8), spacing=spacing), 1, ["a"])["windows"]
    weight = np.ones(())
    for size, sigma in zip(told["size"], told["sigma"], strict=True):
        far = np.arange(size) - (size - 1) / 2
        weight = weight[..., None] * np.exp(-(far**2) / (2 * sigma**2))
    expected = compute_importance_map(roi, "gaussian", told["sigma_scale"])
    np.testing.assert_allclose(np.maximum(weight, told["floor"]), expected, rtol=1e-5)
