"""A new image is prepared and predicted as a case of the run was, bit for bit."""

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.files import look, read
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import predict
from autofedavg.tasks.imaging.preparation import Case
from autofedavg.tasks.imaging.prepared import Store
from autofedavg.tasks.imaging.segmentation import network
from autofedavg.tasks.imaging.segmenter import ImageSegmenter
from volumes import oblique, save_dicom, save_itk, save_nifti

CLASSES = {"a": (1,), "b": (2,)}
SIZE = (23, 19, 11)


def written(folder: Path, seed: int) -> tuple[tuple[Path, ...], Path]:
    """Two channels in a body with air around it, oblique and turned at random, and a label."""
    draw = np.random.default_rng(seed)
    axes, signs = draw.permutation(3), draw.choice([-1, 1], 3)
    affine = oblique(draw.uniform(0.7, 2.5, 3), list(axes), list(signs))
    files = []
    for channel in range(2):
        values = np.zeros(SIZE, np.float32)
        values[3:20, 2:16, 1:9] = draw.normal(200, 60, (17, 14, 8))
        files.append(save_nifti(folder / f"{channel}.nii.gz", values, affine))
    label = draw.integers(0, 3, SIZE).astype(np.uint8)
    return tuple(files), save_nifti(folder / "label.nii.gz", label, affine)


@pytest.mark.parametrize("crop", [False, True], ids=["whole", "cropped"])
@pytest.mark.parametrize("spacing", ["keep", (1.4, 0.9, 2.0)])
@pytest.mark.parametrize("normalise", ["window", "zscore", "percentiles"])
def test_as_a_case_of_the_run(tmp_path, crop, spacing, normalise) -> None:
    how = Pipeline(
        spacing=spacing, normalise=normalise, window=(0.0, 400.0), crop=crop, roi=(16, 16, 16),
        overlap=0.25, channels=(4, 8),
    )  # fmt: skip
    image, label = written(tmp_path, len(normalise) + crop)
    torch.manual_seed(3)
    trained = network(how, 2, 2).eval()
    case = Store(how, CLASSES, str(tmp_path / "cache")).prepare(Case("c", "test", image, label))
    expected = predict(trained, case, how, 2).numpy()
    assert len(np.unique(expected)) == 3
    segmenter = ImageSegmenter(how, 2, [*CLASSES])
    for _ in range(2):  # nothing is changed by use
        made = segmenter.segment(trained, image)
        found = nibabel.Nifti1Image.from_bytes(gzip.decompress(made.content))
        assert np.array_equal(np.asanyarray(found.dataobj), expected)
    assert made.voxels == tuple(int((expected == k).sum()) for k in (1, 2))


@pytest.mark.parametrize("kind", ["nii", "4d", "slice", "nrrd", "mha", "flat.mha", "dicom"])
def test_a_header_tells_what_reading_tells(tmp_path, kind) -> None:
    values = np.random.default_rng(0).normal(0, 99, SIZE).astype(np.int16)
    affine = oblique((0.8, 0.9, 2.0))
    if kind == "dicom":
        path = save_dicom(tmp_path / kind, values, affine)
    elif kind == "flat.mha":
        path = save_itk(tmp_path / kind, values[:, :, :1], affine)
    elif kind in ("nrrd", "mha"):
        path = save_itk(tmp_path / f"a.{kind}", values, affine)
    else:
        shaped = {"nii": values, "4d": np.stack([values] * 3, -1), "slice": values[:, :, :1]}[kind]
        path = save_nifti(tmp_path / "a.nii.gz", shaped, affine)
    header, scan = look([path]), read([path])
    assert header.values.shape == scan.values.shape
    assert header.affine is not None or header.lies is not None
    if kind != "dicom":  # only all its slices tell
        assert header.spacing == scan.spacing
        assert (header.affine is None) == (scan.affine is None)
        assert header.affine is None or np.array_equal(header.affine, scan.affine)
    assert len(look([path, path]).values) == 2 * len(header.values)


def test_a_series_without_spacing_is_told_when_it_is_read(tmp_path) -> None:
    """Only its slices together tell; the remedy is not one for studies alone."""
    values = np.random.default_rng(0).normal(0, 99, (8, 8, 4)).astype(np.int16)
    path = save_dicom(tmp_path / "series", values, np.diag([-1.0, -1.0, 1.0, 1.0]))
    how = Pipeline(spacing=(1.0, 1.0, 2.0), roi=(8, 8, 4), channels=(4, 8))
    segmenter = ImageSegmenter(how, 1, ["a"])
    assert segmenter.ending([path]) == ".nii.gz"
    with pytest.raises(DataError, match=r"spacing is unknown.*write the spacing into the file"):
        segmenter.segment(network(how), [path])
