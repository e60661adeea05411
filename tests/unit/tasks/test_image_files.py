"""Every format gives the same numbers at the same place, and what is no image is refused."""

import gzip
import pickle
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK
from PIL import Image

from autofedavg.core.errors import DataError
from autofedavg.tasks.imaging.files import digest, identity, offset, read, read_label
from volumes import oblique, save_dicom, save_itk, save_nifti

SPACING = (0.7, 1.1, 2.9)
AFFINES = {
    "axial": np.diag([-0.7, -1.1, 2.9, 1.0]),
    "oblique": oblique(SPACING),
    "permuted": oblique(SPACING, (2, 0, 1), (1, -1, 1)),
    "left-handed": oblique(SPACING, (1, 0, 2), (1, 1, 1)),
}


def phantom() -> np.ndarray:
    """No two voxels alike, so nothing can be swapped unseen."""
    return np.random.default_rng(0).permutation(9 * 7 * 5).reshape(9, 7, 5).astype(np.int16)


def at(scan, point) -> float:
    """The value nearest to a point in RAS mm."""
    voxel = np.linalg.solve(scan.affine, [*point, 1.0])[:3]
    assert np.abs(voxel - np.round(voxel)).max() < 0.01
    return float(scan.values[(0, *np.round(voxel).astype(int))])


@pytest.mark.parametrize("placed", [name for name in AFFINES if name != "left-handed"])
@pytest.mark.parametrize("kind", ["nii", "nii.gz", "nrrd", "nhdr", "mha", "mhd", "dicom"])
def test_a_phantom_lies_at_the_same_place_in_every_format(tmp_path, kind, placed) -> None:
    affine, values = AFFINES[placed], phantom()
    path = tmp_path / "Größe von Patient 1" / f"scan.{kind}"
    if kind == "dicom":
        save_dicom(path, values, affine)
    else:
        (save_nifti if kind.startswith("nii") else save_itk)(path, values, affine)
    scan = read([path])
    assert scan.grid == values.shape or kind == "dicom"
    for voxel in ((0, 0, 0), (8, 0, 0), (0, 6, 0), (0, 0, 4), (3, 5, 1)):
        point = (affine @ [*voxel, 1.0])[:3]
        assert at(scan, point) == values[voxel]
    assert scan.spacing == pytest.approx(SPACING, rel=1e-4)


def test_a_left_handed_grid_is_read_as_it_lies(tmp_path) -> None:
    affine, values = AFFINES["left-handed"], phantom()
    assert np.linalg.det(affine[:3, :3]) < 0
    for path in (
        save_nifti(tmp_path / "a.nii.gz", values, affine),
        save_itk(tmp_path / "a.nrrd", values, affine),
    ):
        scan = read([path])
        assert at(scan, (affine @ [3, 5, 1, 1.0])[:3]) == values[3, 5, 1]


def test_one_file_stands_for_its_series(tmp_path) -> None:
    one, two = phantom(), phantom()[::-1]
    save_dicom(tmp_path / "both", one, AFFINES["axial"], series=1)
    save_dicom(tmp_path / "both", two, AFFINES["axial"], series=2)
    first = read([tmp_path / "both" / "1-999.dcm"])
    second = read([tmp_path / "both" / "2-997.dcm"])
    assert np.array_equal(first.values[:, ::-1], second.values)
    assert first.grid == (9, 7, 5)
    with pytest.raises(DataError, match=r"found 2 DICOM series.*name the folder of one"):
        read([tmp_path / "both"])


def test_a_change_of_any_slice_is_seen_in_the_identity(tmp_path) -> None:
    folder = save_dicom(tmp_path / "a", phantom(), AFFINES["axial"])
    before = identity(folder), identity(folder / "1-999.dcm")
    (folder / "1-997.dcm").touch()
    assert before[0] != identity(folder)
    assert before[1] != identity(folder / "1-999.dcm")


@pytest.mark.parametrize(("kind", "data"), [("mhd", "raw"), ("nhdr", "raw")])
def test_a_change_of_detached_data_is_seen_in_the_identity(tmp_path, kind, data) -> None:
    path = save_itk(tmp_path / f"a.{kind}", phantom(), AFFINES["axial"])
    before = identity(path)
    (detached,) = (p for p in tmp_path.iterdir() if p != path)
    detached.touch()
    assert identity(path) != before
    detached.unlink()
    with pytest.raises(DataError, match=rf"a\.{kind}: cannot be read"):
        read([path])


def test_a_header_cannot_lead_out_of_its_folder(tmp_path) -> None:
    path = save_itk(tmp_path / "in" / "a.mhd", phantom(), AFFINES["axial"])
    (tmp_path / "in" / "a.raw").rename(tmp_path / "secret.raw")
    path.write_text(path.read_text().replace("a.raw", "../secret.raw"))
    with pytest.raises(DataError, match=r"its data lies elsewhere: \.\./secret\.raw"):
        read([path])


def test_missing_and_shifted_slices_are_told(tmp_path, capfd) -> None:
    gap = save_dicom(tmp_path / "gap", phantom(), AFFINES["axial"])
    (gap / "1-997.dcm").unlink()
    with pytest.raises(DataError, match=r"not evenly spaced: 5\.8 mm after slice 2, 2\.9 mm else"):
        read([gap])
    flat = save_dicom(tmp_path / "tilt", phantom(), AFFINES["axial"], tilt=1.0)
    with pytest.raises(DataError, match="slices are shifted against each other"):
        read([flat])
    assert capfd.readouterr().err == ""


def test_a_folder_without_a_series_is_told(tmp_path, capfd) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DataError, match="no DICOM series found; name a folder"):
        read([tmp_path])
    assert capfd.readouterr().err == ""


def flat_image(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    Image.fromarray(pixels, mode).save(path) if mode else Image.fromarray(pixels).save(path)
    return path


PIXELS = np.random.default_rng(1).integers(0, 255, (6, 9), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["png", "tif", "tiff", "bmp", "nii.gz", "mha", "dicom"])
def test_flat_images_have_rows_first_in_every_format(tmp_path, kind) -> None:
    """A PNG and a MetaImage of one picture fit on each other, square or not."""
    path = tmp_path / f"a.{kind}"
    if kind == "nii.gz":
        save_nifti(path, PIXELS.T)
    elif kind == "mha":
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(PIXELS), str(path))
    elif kind == "dicom":
        save_dicom(path, PIXELS.T[..., None], AFFINES["axial"])
    else:
        flat_image(path, PIXELS)
    scan = read([path])
    assert np.array_equal(scan.values[0], PIXELS)
    assert scan.affine is None
    assert scan.spacing is None


def test_kinds_of_pixels(tmp_path) -> None:
    deep = (np.arange(54, dtype=np.uint16) * 1000).reshape(6, 9)
    colour = np.random.default_rng(2).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    scan = read([flat_image(tmp_path / "deep.png", deep)])
    assert np.array_equal(scan.values[0], deep)
    scan = read([flat_image(tmp_path / "rgb.png", colour)])
    assert np.array_equal(scan.values, np.moveaxis(colour, -1, 0))
    see_through = np.concatenate([colour, colour[..., :1]], axis=-1)
    assert np.array_equal(
        read([flat_image(tmp_path / "rgba.png", see_through)]).values, scan.values
    )
    grey = np.stack([PIXELS, 255 - PIXELS], axis=-1)
    assert np.array_equal(read([flat_image(tmp_path / "la.png", grey)]).values[0], PIXELS)
    bits = Image.fromarray(PIXELS > 100)
    bits.save(tmp_path / "bits.png")
    assert np.array_equal(read_label(tmp_path / "bits.png").values[0], PIXELS > 100)
    real = (PIXELS / 7).astype(np.float32)
    assert np.array_equal(read([flat_image(tmp_path / "real.tif", real)]).values[0], real)
    assert read([flat_image(tmp_path / "photo.jpg", colour)]).values.shape == (3, 6, 9)


def test_a_palette_is_colours_in_an_image_and_classes_in_a_label(tmp_path) -> None:
    indexed = Image.frombytes("P", (9, 6), (PIXELS % 3).tobytes())
    indexed.putpalette([0, 0, 0, 200, 10, 10, 10, 10, 200])
    indexed.save(tmp_path / "a.png")
    assert np.array_equal(read_label(tmp_path / "a.png").values[0], PIXELS % 3)
    assert read([tmp_path / "a.png"]).values.shape == (3, 6, 9)
    assert set(np.unique(read([tmp_path / "a.png"]).values)) == {0, 10, 200}


def test_channels_of_several_files_are_joined_if_they_fit(tmp_path) -> None:
    affine = AFFINES["oblique"]
    one = save_nifti(tmp_path / "t1.nii.gz", phantom(), affine)
    two = save_nifti(tmp_path / "t2.nii.gz", phantom()[::-1].copy(), affine)
    assert read([one, two]).values.shape == (2, 9, 7, 5)
    four = save_nifti(tmp_path / "all.nii.gz", np.stack([phantom()] * 3, axis=-1), affine)
    assert read([four]).values.shape == (3, 9, 7, 5)
    moved = affine.copy()
    moved[0, 3] += 0.2
    with pytest.raises(DataError, match=r"t3\.nii\.gz: its grid differs from that of t1\.nii\.gz"):
        read([one, save_nifti(tmp_path / "t3.nii.gz", phantom(), moved)])


def test_an_affine_that_says_nothing_still_tells_grids_apart(tmp_path) -> None:
    """An identity without a unit is no spacing, but a label that is moved against it is moved."""
    nibabel.save(nibabel.Nifti1Image(phantom(), np.eye(4)), tmp_path / "a.nii.gz")
    moved = np.eye(4)
    moved[0, 3] = 5
    nibabel.save(nibabel.Nifti1Image(phantom(), moved), tmp_path / "b.nii.gz")
    one, two = read([tmp_path / "a.nii.gz"]), read([tmp_path / "b.nii.gz"])
    assert one.spacing is None
    assert two.spacing == (1.0, 1.0, 1.0)
    assert offset(one.affine, two.affine, one.grid) == 5


def test_labels_are_whole_numbers_from_0_in_one_channel(tmp_path) -> None:
    label = phantom() % 3
    assert np.array_equal(
        read_label(save_nifti(tmp_path / "f.nii.gz", label.astype(np.float64))).values[0], label
    )
    nibabel.save(nibabel.Nifti1Image(label * np.float32(0.9999999), np.eye(4)), tmp_path / "s.nii")
    assert np.array_equal(read_label(tmp_path / "s.nii").values[0], label)
    grey = np.stack([PIXELS % 2] * 3, axis=-1)
    assert np.array_equal(read_label(flat_image(tmp_path / "g.png", grey)).values[0], PIXELS % 2)
    wrong = {
        "half.nii.gz": (label * 0.5, "whole numbers only"),
        "nan.nii.gz": (np.where(label, np.nan, 0), "whole numbers only"),
        "minus.nii.gz": (label.astype(np.int16) - 1, "it holds -1, and labels are numbers from 0"),
    }
    for name, (values, said) in wrong.items():
        with pytest.raises(DataError, match=said):
            read_label(save_nifti(tmp_path / name, values))
    colour = np.random.default_rng(2).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    with pytest.raises(DataError, match="a label has one channel, this file 3"):
        read_label(flat_image(tmp_path / "c.png", colour))
    with pytest.raises(DataError, match="a JPEG cannot be a label"):
        read_label(flat_image(tmp_path / "l.jpg", PIXELS))


@pytest.mark.parametrize("kind", ["nii", "nii.gz", "nrrd", "mha", "png", "tif", "dcm"])
def test_cut_files_are_told(tmp_path, kind) -> None:
    path = tmp_path / f"a.{kind}"
    values = np.random.default_rng(0).integers(0, 999, (30, 30, 10)).astype(np.int16)
    if kind in ("png", "tif"):
        flat_image(path, np.random.default_rng(0).integers(0, 255, (90, 90), dtype=np.uint8))
    elif kind == "dcm":
        path = save_dicom(tmp_path, values, AFFINES["axial"]) / "1-997.dcm"
    else:
        (save_nifti if kind.startswith("nii") else save_itk)(path, values, np.eye(4))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"cannot be read|no DICOM series") as caught:
        read([path])
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 3


class Trap:
    """What a pickle could do when it is loaded."""

    def __reduce__(self):
        return Path.touch, (Path(Trap.place),)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "b.nii.gz", "a.png", "a.nrrd", "a.mha",
                                  "a.tif", "a.dcm"])  # fmt: skip
def test_a_pickle_by_another_name_is_refused_and_never_run(tmp_path, name) -> None:
    Trap.place = str(tmp_path / "it ran")
    content = pickle.dumps(Trap())
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name == "b.nii.gz" else content)
    with pytest.raises(DataError) as caught:
        read([path])
    assert not (tmp_path / "it ran").exists()
    if name not in ("b.nii.gz", "a.dcm"):
        assert "it is a pickle, not an image" in str(caught.value)


@pytest.mark.parametrize("name", ["a.npy", "a.pkl", "a.pt", "a", "a.nii.bz2"])
def test_kinds_that_are_not_known_are_refused(tmp_path, name) -> None:
    (tmp_path / name).write_bytes(pickle.dumps([1]))
    expected = r"unknown image format .*; use a folder of DICOM files, or one of"
    with pytest.raises(DataError, match=expected):
        read([tmp_path / name])


def test_pages_and_missing_files_are_told(tmp_path) -> None:
    pages = [Image.fromarray(PIXELS), Image.fromarray(PIXELS)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match="it holds 2 pages"):
        read([tmp_path / "a.tif"])
    with pytest.raises(DataError, match=r"gone\.png: no such file; correct the path"):
        read([tmp_path / "gone.png"])
    with pytest.raises(DataError, match="no such file"):
        identity(tmp_path / "gone.png")


def test_an_affine_that_places_nothing_is_told(tmp_path) -> None:
    for broken in ((np.nan, 0, 0, 0), (0, 0, 0, 0)):
        image = nibabel.Nifti1Image(phantom(), np.eye(4))
        nibabel.save(image, tmp_path / "a.nii")
        header = bytearray((tmp_path / "a.nii").read_bytes())
        header[280:296] = np.array(broken, "<f4").tobytes()  # srow_x
        (tmp_path / "a.nii").write_bytes(header)
        with pytest.raises(DataError, match="its affine does not place voxels in space"):
            read([tmp_path / "a.nii"])


def test_a_digest_is_of_the_numbers_not_of_the_file(tmp_path) -> None:
    affine = AFFINES["oblique"]
    one = read([save_nifti(tmp_path / "a.nii.gz", phantom(), affine)])
    two = read([save_itk(tmp_path / "b.nrrd", phantom().astype(np.float32), affine)])
    other = read([save_nifti(tmp_path / "c.nii.gz", phantom() + 1, affine)])
    assert digest(one.values) == digest(two.values) != digest(other.values)
