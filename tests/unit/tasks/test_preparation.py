"""The deterministic steps of one case: numbering, cropping, normalising."""

import nibabel
import numpy as np
import pytest

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.intensities import normalised
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.preparation import Case, arrays, load
from autofedavg.tasks.imaging.prepared import Store
from autofedavg.tasks.imaging.segmentation import SegmentationSite
from volumes import oblique, save_nifti, write_case


def how(**change) -> Pipeline:
    return Pipeline(**{"spacing": "keep", "roi": (8, 8, 8), "channels": (4, 8), **change})


def head(size=(20, 18, 16)) -> np.ndarray:
    """An image that is 0 around a box, as scanners write it."""
    image = np.zeros(size, np.float32)
    image[4:15, 5:12, 3:14] = np.random.default_rng(0).normal(300, 50, (11, 7, 11))
    return image


def test_a_window_maps_to_0_and_1_and_clips() -> None:
    values = np.array([[-1500.0, -1000.0, -250.0, 500.0, 900.0]], np.float32)
    found = normalised(values, how(window=(-1000.0, 500.0)))
    assert found.tolist() == [[0.0, 0.0, 0.5, 1.0, 1.0]]


def test_mean_and_spread_are_those_of_what_is_not_empty() -> None:
    image = head()
    image[5, 6, 4] = 1e6  # metal
    found = normalised(np.stack([image, image * 7 + 0.0]), how(normalise="zscore"))
    inside = found[0][image > 0]
    assert found.max() == 5
    assert found[0] == pytest.approx(found[1], abs=1e-4)  # whatever the scanner's scale
    clean = normalised(head()[None], how(normalise="zscore"))[0][head() > 0]
    assert clean.mean() == pytest.approx(0, abs=0.01)
    assert clean.std() == pytest.approx(1, abs=0.02)
    assert np.isfinite(inside).all()


def test_percentiles_are_each_images_own() -> None:
    image = head()
    image[5, 6, 4] = 1e6
    found = normalised(
        np.stack([image, image * 3 + 40 * (image > 0)]), how(normalise="percentiles")
    )
    assert found.min() == 0
    assert found.max() == 1
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    assert 0.4 < found[0][image > 0].mean() < 0.6


def test_nearly_empty_images_are_normalised_by_all_their_voxels() -> None:
    image = np.zeros((20, 20, 20), np.float32)
    image[0, 0, :3] = (1, 2, 3)
    for kind in ("zscore", "percentiles"):
        assert np.isfinite(normalised(image[None], how(normalise=kind))).all()


@pytest.mark.parametrize("kind", ["zscore", "window"])
def test_a_crop_keeps_everything_that_is_not_empty(tmp_path, kind) -> None:
    image = head()
    label = (image > 350).astype(np.uint8)
    affine = oblique((0.7, 1.1, 2.9))
    case = write_case(tmp_path, "a", image, label, affine)
    made = arrays(case, how(crop=True, normalise=kind, window=(0.0, 400.0)), {"a": (1,)})
    assert made.label.shape == (11, 7, 11)
    assert made.label.sum() == label.sum()
    assert made.original.shape == label.shape
    corner = made.affine @ [0, 0, 0, 1]
    assert corner == pytest.approx(affine @ [4, 5, 3, 1], abs=1e-4)


def test_values_of_any_size_are_numbered_as_the_classes_are_listed(tmp_path) -> None:
    image = head()
    label = np.zeros(image.shape, np.uint16)
    label[5], label[6], label[7] = 60000, 300, 2
    case = write_case(tmp_path, "a", image, label)
    _, found = load(case, {"b": (300, 2), "a": (60000,)})
    assert found.dtype == np.uint8
    assert (found[5] == 2).all()
    assert (found[6:8] == 1).all()
    assert found.sum() == found[5:8].sum()
    with pytest.raises(DataError, match=r"it holds 300, 60000, which the class list does not have"):
        load(case, {"b": (2,)})


def test_images_that_do_not_fit_the_pipeline_are_told(tmp_path) -> None:
    image = head()
    case = write_case(tmp_path, "a", image, (image > 350).astype(np.uint8))
    with pytest.raises(DataError, match="it has 3 axes, the pipeline's roi 2"):
        arrays(case, Pipeline(roi=(8, 8), spacing="keep", channels=(4, 8)), {"a": (1,)})
    nibabel.save(nibabel.Nifti1Image(image, np.eye(4)), tmp_path / "b.nii")
    unknown = Case("b", "", (tmp_path / "b.nii",), case.label)
    with pytest.raises(DataError, match="its voxel spacing is unknown, so it cannot be resampled"):
        arrays(unknown, how(spacing=(1.0, 1.0, 1.0)), {"a": (1,)})


def test_a_case_without_foreground_can_be_trained_on_from_disk_and_from_memory(tmp_path) -> None:
    image = head()
    path = save_nifti(tmp_path / "i.nii", image)
    case = Case("a", "train", (path,), save_nifti(tmp_path / "l.nii", np.zeros_like(image)))
    settings = how(foreground=1.0)
    found = Store(settings, cache=str(tmp_path)).prepare(case)
    for _ in range(2):
        site = SegmentationSite("s", {"train": [found]}, settings)
        _, label = site._batch("train", np.zeros(3, int), np.random.RandomState(0), augment=True)
        assert not label.any()
        found.hold()
