"""Small image files and prepared cases for tests."""

from pathlib import Path

import nibabel
import numpy as np

from autofedavg.tasks.preparation import BINARY, Case
from autofedavg.tasks.prepared import SPLITS, Store


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
