"""Labels of the public CT sets land on the right voxels of their images."""

import numpy as np
import pytest

from autofedavg.core.errors import DataError
from autofedavg.tasks.archives.pancreas import Pancreas, PancreasPipeline
from autofedavg.tasks.imaging.files import read_label
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.preparation import BACKGROUND, Case, arrays, load
from lookalikes_ct import ball, scaled, write_pancreas, write_series, write_tcia_case
from volumes import save_nifti, write_case

ONE = {"pancreas": (1,)}


def bright(values: np.ndarray) -> np.ndarray:
    """The ball, seen in the image itself."""
    return values > 30


@pytest.fixture
def tcia(tmp_path):
    """A case whose label's affine is wrong in origin and spacing."""
    image, mask = ball(5)
    series = write_tcia_case(tmp_path, "PANCREAS_0001", image, mask)
    label = tmp_path / "TCIA_pancreas_labels-02-05-2017" / "label0001.nii.gz"
    return Case("PANCREAS_0001", "train", (series,), label), mask


def test_tcia_label_lands_on_the_ball(tcia) -> None:
    case, mask = tcia
    scan, label = load(case._replace(by_rows=True), ONE)
    assert np.array_equal(label.astype(bool), bright(scan.values[0]))
    assert label.sum() == mask.sum() > 50


def test_tcia_slices_run_from_the_head_and_rows_from_the_back(tcia) -> None:
    case, mask = tcia
    scan, label = load(case._replace(by_rows=True), ONE)
    # RAS: the first axis runs to the left, the second to the front, the third downwards.
    assert np.sign(np.diag(scan.affine)[:3]).tolist() == [-1, 1, -1]
    assert scan.spacing == pytest.approx((2.0, 2.0, 2.5))
    assert np.array_equal(label, mask)


def test_slices_that_are_read_upwards_turn_the_label_over(tmp_path) -> None:
    """With rows from front to back the reader goes from the feet up."""
    image, mask = ball(6)
    folder = tmp_path / "series"
    write_series(folder, image, (2.0, 2.0, 2.5), orientation=r"1\0\0\0\1\0")
    path = save_nifti(tmp_path / "label0001.nii.gz", mask)
    scan, label = load(Case("a", "train", (folder,), path, by_rows=True), ONE)
    assert scan.affine[2, 2] > 0
    assert np.array_equal(label.astype(bool), bright(scan.values[0]))


def test_prepared_label_still_lies_on_the_ball(tcia) -> None:
    case, _ = tcia
    how = Pipeline(
        spacing=(1.0, 1.0, 1.0), window=(-87.0, 199.0), crop=True, roi=(16, 16, 16), channels=(4, 8)
    )
    made = arrays(case._replace(by_rows=True), how, ONE)
    shown = made.image[0].astype(np.float32) > (30 + 87) / 286
    middles = [np.argwhere(mask).mean(axis=0) for mask in (shown, made.label)]
    assert np.abs(middles[0] - middles[1]).max() < 1  # mm; nearest-voxel ties shift it by half
    assert shown[made.label == 1].mean() > 0.75


@pytest.mark.parametrize("turned", [False, True])
def test_labels_that_do_not_lie_on_soft_tissue_are_warned_of(tmp_path, caplog, turned) -> None:
    root = write_pancreas(tmp_path, 1)
    if turned:
        for path in sorted((root / "TCIA" / "TCIA_pancreas_labels-02-05-2017").iterdir()):
            save_nifti(path, read_label(path).values[0][:, ::-1])
    how = PancreasPipeline(network="unet", channels=(4, 8), roi=(16, 16, 16))
    Pancreas(root=str(root), cases=1, cache=str(tmp_path / "cache"), pipeline=how).prepare()
    told = [record.message for record in caplog.records]
    if turned:
        (only,) = told
        assert only.startswith("TCIA: only ")
        assert "labels may be flipped" in only
    else:
        assert not told


def test_everyone_else_is_still_refused_a_label_that_lies_elsewhere(tcia) -> None:
    case, _ = tcia
    with pytest.raises(DataError, match="voxels away from its image"):
        load(case, ONE)


def test_a_label_of_another_size_is_refused_even_by_rows(tcia, tmp_path) -> None:
    case, mask = tcia
    path = save_nifti(tmp_path / "short.nii.gz", mask[..., 1:])
    with pytest.raises(DataError, match="its grid is 24 x 22 x 11, the image's 24 x 22 x 12"):
        load(case._replace(by_rows=True, label=path), ONE)


def test_btcv_keeps_organ_eleven_alone(tmp_path) -> None:
    image, mask = ball(7)
    organs = np.where(mask, 11, 0).astype(np.uint8)
    organs[0, 0, :] = range(1, 13)
    organs[0, 0, 10] = 13
    case = write_case(tmp_path, "img0001", image, organs, scaled(2, 2, 3))
    _, label = load(case._replace(classes=Pancreas().sources["BTCV"].classes), ONE)
    assert np.array_equal(label, mask)


def test_msd_counts_the_tumour_as_pancreas(tmp_path) -> None:
    image, mask = ball(8)
    with_tumour = mask.copy()
    with_tumour[tuple(np.argwhere(mask)[0])] = 2
    case = write_case(tmp_path, "pancreas_001", image, with_tumour, scaled(2, 2, 3))
    _, label = load(case._replace(classes=Pancreas().sources["MSD"].classes), ONE)
    assert np.array_equal(label, mask)


def test_values_that_are_neither_class_nor_background_are_refused(tmp_path) -> None:
    image, mask = ball(9)
    case = write_case(tmp_path, "img0001", image, mask * 14, scaled(2, 2, 3))
    with pytest.raises(DataError, match=r"it holds 14, .*pancreas \[11\], background \[1, 2"):
        load(case._replace(classes=Pancreas().sources["BTCV"].classes), ONE)


def test_background_is_no_class_of_its_own(tmp_path) -> None:
    image, mask = ball(10)
    case = write_case(tmp_path, "a", image, mask * 3, scaled(2, 2, 3))
    _, label = load(case, {BACKGROUND: (1, 2), "ball": (3,)})
    assert np.array_equal(label, mask)
