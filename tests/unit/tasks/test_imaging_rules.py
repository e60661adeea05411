"""What must not slip through between files and batches."""

import nibabel
import numpy as np
import pytest
import SimpleITK
import torch
from monai.inferers import SlidingWindowInferer

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging import prepared as module
from autofedavg.tasks.imaging.files import read, read_label
from autofedavg.tasks.imaging.intensities import moments, normalised
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import predict
from autofedavg.tasks.imaging.preparation import BINARY, Case, arrays, load
from autofedavg.tasks.imaging.prepared import Store, refuse_copies
from autofedavg.tasks.lists.task import Datalist
from volumes import save_nifti, write_case

HOW = Pipeline(spacing=(1.0, 1.0, 1.0), roi=(8, 8, 8), window=(0.0, 100.0), channels=(4, 8))


def volume(seed: int = 0, size=(9, 10, 11)) -> tuple[np.ndarray, np.ndarray]:
    image = np.random.default_rng(seed).uniform(0, 100, size).astype(np.float32)
    return image, (image > 60).astype(np.uint8)


def test_the_digest_of_the_data_knows_where_it_lies(tmp_path) -> None:
    image, label = volume()
    found = []
    for size in (1.0, 3.0):
        case = write_case(tmp_path / str(size), "a", image, label, np.diag([size] * 3 + [1.0]))
        found.append(Store(HOW, cache=str(tmp_path)).content({"north": [case]}))
    assert found[0] != found[1]


def test_a_copy_stored_along_other_axes_is_still_a_copy(tmp_path) -> None:
    image, label = volume()
    affine = np.diag([1.0, 1.0, 2.0, 1.0])
    turned = affine @ np.array([[-1, 0, 0, 8], [0, -1, 0, 9], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    one = write_case(tmp_path / "a", "a", image, label, affine)
    two = write_case(tmp_path / "b", "b", image[::-1, ::-1], label[::-1, ::-1], turned)
    store = Store(HOW, cache=str(tmp_path))
    ready = {
        "A": {"train": [store.prepare(one)], "test": []},
        "B": {"train": [], "test": [store.prepare(two)]},
    }
    with pytest.raises(DataError, match="A/train/a and B/test/b"):
        refuse_copies(ready)


def test_mean_and_spread_are_those_of_the_body_unless_there_is_no_air() -> None:
    draw = np.random.default_rng(0)
    head = np.where(draw.random(20000) < 0.5, draw.normal(3, 1, 20000), draw.normal(100, 10, 20000))
    mean, spread = moments(head.astype(np.float32))
    assert mean == pytest.approx(100, abs=1)
    assert spread == pytest.approx(10, abs=1)
    ground = draw.normal(30000, 300, 20000)
    ground[:3000] = draw.normal(15000, 3000, 3000)
    pictures = Pipeline(spacing="keep", normalise="zscore", roi=(8, 8), channels=(4, 8))
    seen = normalised(ground.astype(np.float32)[None], pictures)[0]
    assert (np.abs(seen) >= 5).mean() < 0.02
    assert seen[:3000].astype(float).std() > 0.3  # what is dark keeps its structure


def test_a_slice_whose_label_lies_elsewhere_is_refused(tmp_path) -> None:
    image, label = volume(size=(9, 9, 1))
    there = write_case(tmp_path, "a", image, label, np.diag([-1.0, -1.0, 1.0, 1.0]))
    save_nifti(there.label, label, np.eye(4))
    with pytest.raises(DataError, match=r"it lies \d+ voxels away from its image"):
        load(there, BINARY)
    save_nifti(there.label, label, np.diag([-1.0, -1.0, 1.0, 1.0]))
    assert load(there, BINARY)[0].grid == (9, 9)


def test_a_class_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="a class needs a name"):
        Datalist(classes={"": (2,), "a": (1,)})


def test_units_are_read_and_missing_ones_are_not_millimetres(tmp_path) -> None:
    image, _ = volume()
    written = nibabel.Nifti1Image(image, np.diag([500.0, 500.0, 2000.0, 1.0]))
    written.header.set_xyzt_units("micron")
    nibabel.save(written, tmp_path / "small.nii.gz")
    assert read((tmp_path / "small.nii.gz",)).spacing == pytest.approx((0.5, 0.5, 2.0))
    for ending in ("nrrd", "mha"):
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(image), str(tmp_path / f"bare.{ending}"))
        assert read((tmp_path / f"bare.{ending}",)).spacing is None


@pytest.mark.parametrize("text", ["slice%02d.raw 0 3 1", "LIST"])
def test_data_spread_over_files_is_refused(tmp_path, text) -> None:
    path = tmp_path / "spread.mhd"
    path.write_text(f"ObjectType = Image\nNDims = 3\nDimSize = 4 4 4\nElementDataFile = {text}\n")
    with pytest.raises(DataError, match="spread over files"):
        read_label(path)


def test_an_image_that_resampling_makes_constant_is_told(tmp_path) -> None:
    image = np.zeros((12, 12, 12), np.float32)
    image[5, 5, 5] = 1.0
    case = write_case(tmp_path, "dot", image, (image > 0).astype(np.uint8))
    coarse = HOW.model_copy(update={"spacing": (4.0, 4.0, 4.0), "normalise": "zscore"})
    with pytest.raises(DataError, match="after resampling and cropping"):
        arrays(case, coarse, BINARY)


def test_an_image_smaller_than_the_window_is_predicted_as_by_monai(tmp_path) -> None:
    """Padded on both sides, every channel with its own smallest intensity."""
    draw = np.random.default_rng(0)
    affine = np.diag([1.0, 1.0, 1.0, 1.0])
    files = [
        save_nifti(
            tmp_path / f"{k}.nii.gz", draw.random((5, 20, 7), np.float32) ** (1 + 3 * k), affine
        )
        for k in range(2)
    ]
    label = save_nifti(tmp_path / "label.nii.gz", np.ones((5, 20, 7), np.uint8), affine)
    how = Pipeline(spacing="keep", normalise="zscore", roi=(16, 8, 8), overlap=0.5, channels=(4, 8))
    case = Store(how, cache=str(tmp_path)).prepare(Case("a", "test", tuple(files), label))
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv3d(2, 6, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(6, 2, 3, padding=1)
    )
    with torch.no_grad():
        lows = torch.tensor(case.low).reshape(2, 1, 1, 1)
        assert lows[0] != lows[1]
        inferer = SlidingWindowInferer(how.roi, sw_batch_size=2, overlap=0.5, mode="gaussian")
        # MONAI pads all channels with one number, so the channels' lows are moved to 0 for it.
        shifted = torch.nn.Sequential(Shift(lows), network)
        image = case.crop((slice(None),) * 3)[0]
        expected = inferer((image - lows)[None], shifted)[0].argmax(dim=0)
    assert torch.equal(predict(network, case, how, 1).long(), expected)


class Shift(torch.nn.Module):
    def __init__(self, by: torch.Tensor) -> None:
        super().__init__()
        self.by = by

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image + self.by


GOLDEN = {"version": 5, "window": "489.8", "zscore": "-1668.1", "percentiles": "491.2"}


@pytest.mark.parametrize("way", ["window", "zscore", "percentiles"])
def test_prepared_arrays_change_only_with_the_version(tmp_path, way) -> None:
    """If this fails, the same files give other arrays: raise VERSION, and write both here."""
    image, label = volume(3)
    case = write_case(tmp_path, "golden", image, label, np.diag([-1.0, 1.0, 2.0, 1.0]))
    how = HOW.model_copy(update={"spacing": "keep", "normalise": way, "crop": True})
    made = arrays(case, how, BINARY)
    total = np.round(made.image.astype(np.float64), 2).sum() + 1000.0 * made.label.argmax()
    assert (module.VERSION, f"{total:.1f}") == (GOLDEN["version"], GOLDEN[way])
