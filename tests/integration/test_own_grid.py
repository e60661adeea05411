"""A prediction comes back onto the grid of its file, wherever and however that grid lies."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autofedavg.tasks.imaging import prediction
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import dices
from autofedavg.tasks.imaging.preparation import BINARY, Case
from autofedavg.tasks.imaging.prepared import Store
from autofedavg.tasks.imaging.segmentation import SegmentationSite
from volumes import oblique, save_nifti

SPACING = (0.7, 1.1, 2.9)
GRID = (52, 40, 18)
TWO = {"inner": (3,), "outer": (1,)}


class Oracle(torch.nn.Module):
    """A network that sees the class in the intensity: class k lies around `levels[k]`."""

    def __init__(self, levels: tuple[float, ...]) -> None:
        super().__init__()
        self.levels = torch.nn.Parameter(torch.tensor(levels), requires_grad=False)

    def forward(self, image):
        levels = self.levels.view(1, -1, *(1,) * (image.dim() - 2))
        return -400 * (image[:, :1] - levels) ** 2


def depth(centre, radius) -> np.ndarray:
    """About how many mm every voxel lies inside an ellipsoid along the file's own axes."""
    place = np.stack(np.meshgrid(*[np.arange(n) for n in GRID], indexing="ij"), -1) * SPACING
    return (1 - np.linalg.norm((place - centre) / radius, axis=-1)) * min(radius)


def ellipsoid(centre, radius) -> np.ndarray:
    return depth(centre, radius) > 0


def nested() -> np.ndarray:
    """An ellipsoid of class 3 in one of class 1."""
    label = ellipsoid((17.0, 24.0, 25.0), (11.0, 13.0, 16.0)).astype(np.uint8)
    label[ellipsoid((15.0, 22.0, 26.0), (5.0, 7.0, 10.0))] = 3
    return label


def site_of(tmp_path: Path, image, label, affine, classes, **change):
    """The one case of a site, prepared in earnest."""
    how = Pipeline(**{
        "normalise": "window", "window": (0.0, 100.0), "roi": (24, 24, 32), "overlap": 0.5,
        "channels": (4, 8), **change,
    })  # fmt: skip
    case = Case(
        "a",
        "test",
        (save_nifti(tmp_path / "image.nii.gz", image, affine),),
        save_nifti(tmp_path / "label.nii.gz", label, affine),
    )
    prepared = Store(how, classes, str(tmp_path / "cache")).prepare(case)
    return SegmentationSite("north", {"test": [prepared]}, how, [*classes]), prepared


def centroid(mask: np.ndarray) -> np.ndarray:
    return np.argwhere(mask).mean(axis=0)


ORIENTATIONS = {
    "RAS": ((0, 1, 2), (1, 1, 1)),
    "LPS": ((0, 1, 2), (-1, -1, 1)),
    "permuted": ((2, 0, 1), (1, -1, 1)),
    "reversed": ((1, 2, 0), (-1, 1, -1)),
}


@pytest.mark.parametrize("crop", [False, True], ids=["whole", "cropped"])
@pytest.mark.parametrize("axes", ORIENTATIONS)
def test_another_spacing_keeps_a_shape_in_its_place(tmp_path, axes, crop) -> None:
    """Oblique and anisotropic, resampled, padded (18 slices of 2.9 mm become 26 of 2; roi 32)."""
    order, signs = ORIENTATIONS[axes]
    affine = oblique(SPACING, order, signs)
    inside = depth((17.0, 24.0, 25.0), (11.0, 13.0, 16.0))
    label = (inside > 0).astype(np.uint8)
    image = np.clip(50 + 12 * inside, 0, 100)  # grey at the surface: interpolation is fair to it
    site, prepared = site_of(
        tmp_path, image, label, affine, BINARY, spacing=(1.0, 0.9, 2.0), crop=crop
    )
    assert prepared.moved
    assert (np.prod(prepared.size) < 0.7 * label.size * np.prod(SPACING) / 1.8) == crop
    found = site.predict(Oracle((0.0, 1.0)), prepared).numpy()
    assert found.shape == label.shape
    assert dices(torch.from_numpy(found), torch.from_numpy(label), 1)[0] > 0.95
    assert np.abs(centroid(found == 1) - centroid(label == 1)).max() < 0.06
    scores = {s.metric: s.value for s in site.score(Oracle((0.0, 1.0)), "test")}
    assert scores["label_voxels"] == label.sum()
    assert scores["dice"] > 0.95


@pytest.mark.parametrize("crop", [False, True], ids=["whole", "cropped"])
@pytest.mark.parametrize("axes", ORIENTATIONS)
@pytest.mark.parametrize("spacing", ["keep", "own"])
def test_the_files_own_spacing_gives_the_label_back_to_the_voxel(
    tmp_path, axes, crop, spacing
) -> None:
    order, signs = ORIENTATIONS[axes]
    affine = oblique(SPACING, order, signs)
    noise = np.random.default_rng(0).random(GRID) < 0.1  # not smooth: any shift would be seen
    label = np.where(noise & (nested() > 0), 3, nested()).astype(np.uint8)
    label[0, 0, 0] = label[-1, -1, -1] = 1  # and right at the edge
    own = tuple(float(SPACING[int(np.argmax(np.array(order) == k))]) for k in range(3))
    image = np.choose(np.searchsorted([0, 1, 3], label), [0.0, 50.0, 100.0])
    site, prepared = site_of(
        tmp_path, image, label, affine, TWO,
        spacing="keep" if spacing == "keep" else own, crop=crop,
    )  # fmt: skip
    found = site.predict(Oracle((0.0, 1.0, 0.5)), prepared).numpy()
    assert np.array_equal(found, np.choose(np.searchsorted([0, 1, 3], label), [0, 2, 1]))


@pytest.mark.parametrize("crop", [False, True], ids=["whole", "cropped"])
def test_several_classes_come_back_each_in_its_place(tmp_path, crop) -> None:
    """The classes are numbered as they are listed, whatever their values are."""
    label = nested()
    image = np.choose(np.searchsorted([0, 1, 3], label), [0.0, 50.0, 100.0])
    affine = oblique(SPACING, *ORIENTATIONS["permuted"])
    site, _ = site_of(
        tmp_path, image, label, affine, TWO, spacing=(0.6, 0.6, 0.6), roi=(32, 32, 32), crop=crop
    )
    scores = {s.metric: s.value for s in site.score(Oracle((0.0, 1.0, 0.5)), "test")}
    assert scores["dice:inner"] > 0.95
    assert scores["dice:outer"] > 0.9  # a thin shell has much surface
    assert scores["dice"] == pytest.approx((scores["dice:inner"] + scores["dice:outer"]) / 2)


def test_far_from_the_origin_nothing_shifts(tmp_path) -> None:
    affine = oblique(SPACING, *ORIENTATIONS["reversed"])
    affine[:3, 3] = (-81234.5, 40321.25, 91234.75)
    label = (nested() > 0).astype(np.uint8)
    site, prepared = site_of(tmp_path, label * 100.0, label, affine, BINARY, spacing="keep")
    found = site.predict(Oracle((0.0, 1.0)), prepared).numpy()
    assert np.array_equal(found, label)


@pytest.mark.parametrize("size", [(20, 50), (50, 20), (9, 11)])
def test_flat_images_come_back_to_the_pixel(tmp_path, size) -> None:
    """Smaller than the window in one axis or in both."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    label = (((rows - 6) / 4) ** 2 + ((columns - 5) / 3) ** 2 < 1).astype(np.uint8)
    Image.fromarray(label * 255).save(tmp_path / "image.png")
    Image.fromarray(label).save(tmp_path / "label.png")
    how = Pipeline(spacing="keep", window=(0.0, 255.0), roi=(32, 16), overlap=0.5, channels=(4, 8))
    case = Case("a", "test", (tmp_path / "image.png",), tmp_path / "label.png")
    prepared = Store(how, BINARY, str(tmp_path / "cache")).prepare(case)
    site = SegmentationSite("north", {"test": [prepared]}, how)
    assert np.array_equal(site.predict(Oracle((0.0, 1.0)), prepared).numpy(), label)


@pytest.mark.parametrize("crop", [False, True], ids=["whole", "cropped"])
def test_slabs_of_a_large_volume_join_without_a_seam(tmp_path, monkeypatch, crop) -> None:
    """Windows, the way back and the scores go in pieces; how large they are changes nothing."""
    inside = depth((17.0, 24.0, 25.0), (11.0, 13.0, 16.0))
    label = (inside > 0).astype(np.uint8)
    image = np.clip(50 + 12 * inside, 0, 100)
    affine = oblique(SPACING, *ORIENTATIONS["permuted"])
    site, prepared = site_of(
        tmp_path, image, label, affine, BINARY, spacing=(1.0, 0.9, 2.0), crop=crop
    )
    whole, scores = (
        site.predict(Oracle((0.0, 1.0)), prepared),
        site.score(Oracle((0.0, 1.0)), "test"),
    )
    assert whole.any()
    monkeypatch.setattr(prediction, "AT_ONCE", 3 * label[0].size)  # three rows at a time
    assert torch.equal(site.predict(Oracle((0.0, 1.0)), prepared), whole)
    assert site.score(Oracle((0.0, 1.0)), "test") == scores
