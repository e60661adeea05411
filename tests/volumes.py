"""Small image files and prepared cases for tests."""

import locale
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK

from autofedavg.tasks.imaging.preparation import BINARY, Case
from autofedavg.tasks.imaging.prepared import SPLITS, Store


def save_nifti(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> Path:
    """Writes a volume whose header says that it is in mm."""
    image = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine)
    image.header.set_xyzt_units("mm")
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)
    return path


def write_case(folder: Path, name: str, image, label, affine=None, split: str = "train") -> Case:
    """Writes an image and its label."""
    return Case(
        name,
        split,
        (save_nifti(folder / f"{name}_image.nii.gz", image, affine),),
        save_nifti(folder / f"{name}_label.nii.gz", label, affine),
    )


def prepared(how, cases, cache: Path, classes=BINARY):
    """Cases by split, prepared and held, whatever they have in common."""
    store = Store(how, classes, str(cache))
    found = {split: [] for split in SPLITS}
    for case in cases:
        found[case.split].append(store.prepare(case))
        found[case.split][-1].hold()
    return found


def oblique(spacing, axes=(0, 1, 2), signs=(1, 1, 1), origin=(-31.5, 12.25, 107.0)) -> np.ndarray:
    """An affine that is rotated by 17 and 8 degrees; file axis k runs along RAS axis `axes[k]`."""
    one, two = np.deg2rad([17.0, 8.0])
    turn = np.array([[np.cos(one), -np.sin(one), 0], [np.sin(one), np.cos(one), 0], [0, 0, 1]])
    tilt = np.array([[1, 0, 0], [0, np.cos(two), -np.sin(two)], [0, np.sin(two), np.cos(two)]])
    affine = np.eye(4)
    affine[:3, :3] = (turn @ tilt @ np.eye(3)[:, list(axes)]) * np.multiply(spacing, signs)
    affine[:3, 3] = origin
    return affine


def itk_image(values: np.ndarray, affine: np.ndarray) -> SimpleITK.Image:
    """An array (x, y, z) and its affine in RAS as ITK has them: z, y, x and LPS."""
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(values.transpose(2, 1, 0)))
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin(lps[:3, 3].tolist())
    return image


def save_itk(path: Path, values: np.ndarray, affine: np.ndarray) -> Path:
    """Writes NRRD or MetaImage, as the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    SimpleITK.WriteImage(itk_image(values, affine), str(path))
    return path


def save_dicom(folder: Path, values, affine: np.ndarray, series: int = 1, tilt: float = 0) -> Path:
    """Writes a series of int16 slices, `tilt` mm apart in y; file names run against the order."""
    folder.mkdir(parents=True, exist_ok=True)
    image = itk_image(values.astype(np.int16), affine)
    direction = np.array(image.GetDirection()).reshape(3, 3)
    writer = SimpleITK.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    uid = f"1.2.826.0.1.3680043.2.1125.{series}"
    for z in range(values.shape[2]):
        slice_ = image[:, :, z]
        place = np.add(image.TransformIndexToPhysicalPoint((0, 0, z)), (0, tilt * z, 0))
        facts = {
            "0008|0060": "CT",
            "0008|0016": "1.2.840.10008.5.1.4.1.1.2",
            "0008|0018": f"{uid}.1.{z + 1}",
            "0020|000d": f"{uid}.9",
            "0020|000e": uid,
            "0020|0013": str(z + 1),
            "0020|0032": "\\".join(map(str, place)),
            "0020|0037": "\\".join(map(str, direction[:, :2].T.ravel())),
            "0018|0050": str(image.GetSpacing()[2]),
            "0028|0030": "\\".join(map(str, image.GetSpacing()[1::-1])),
        }
        for key, value in facts.items():
            slice_.SetMetaData(key, value)
        writer.SetFileName(str(folder / f"{series}-{999 - z}.dcm"))
        spoken = locale.setlocale(locale.LC_ALL)
        writer.Execute(slice_)  # which leaves the process in plain C
        locale.setlocale(locale.LC_ALL, spoken)
    return folder
