"""Small volumes laid out as the public CT archives lay out theirs, with something to learn.

A bright ball (the structure) in a body of fat in air; each layout has its own axes, label values
and junk, as the real one has.
"""

import locale
from pathlib import Path

import numpy as np
import SimpleITK

from autofedavg.tasks.archives.sources import read_cases
from volumes import save_nifti

GRID = (24, 22, 12)
# Left, anterior, inferior: how TCIA's labels and its DICOM slices run.
LAI = np.array([[-1, 0, 0], [0, 1, 0], [0, 0, -1]], dtype=float)


def ball(seed: int, grid: tuple[int, ...] = GRID) -> tuple[np.ndarray, np.ndarray]:
    """An image in Hounsfield units and the mask of its ball, which lies anywhere but the middle."""
    draw = np.random.RandomState(seed)
    axes = np.meshgrid(*(np.arange(n) for n in grid), indexing="ij")
    centre = [draw.uniform(0.25 * n, 0.45 * n) for n in grid]
    mask = sum(((a - c) / (0.16 * n)) ** 2 for a, c, n in zip(axes, centre, grid, strict=True)) < 1
    body = sum(((a - n / 2) / (0.46 * n)) ** 2 for a, n in zip(axes, grid, strict=True)) < 1
    image = np.where(body, -75, -1000) + np.where(mask, 215, 0) + draw.randint(-9, 9, grid)
    return image.astype(np.int16), mask.astype(np.uint8)


def scaled(*spacing: float) -> np.ndarray:
    return np.diag([*spacing, 1.0])


def wanted(task: str, cases: int, site: str | None = None) -> list[str]:
    """The first so many cases of every site and split, as `task.cases` takes them."""
    count: dict[tuple[str, str], int] = {}
    names = []
    for known in read_cases(task):
        place = known.site, known.split
        if site in (None, known.site) and not known.withdrawn and count.get(place, 0) < cases:
            count[place] = count.get(place, 0) + 1
            names.append(known.case)
    return names


def write_covid(root: Path, cases: int) -> Path:
    """COVID-19-20_v2: Train with labels, Validation without."""
    home = root / "COVID-19-20_v2"
    affine = scaled(0.8, 0.8, 5.0)
    for seed, case in enumerate(wanted("covid", cases)):
        image, mask = ball(seed)
        save_nifti(home / "Train" / f"{case}_ct.nii.gz", image, affine)
        save_nifti(home / "Train" / f"{case}_seg.nii.gz", mask, affine)
    save_nifti(home / "Validation" / "volume-covid19-A-0001_ct.nii.gz", ball(999)[0], affine)
    (home / "license.txt").write_text("terms")
    return root


def write_msd(root: Path, cases: int) -> None:
    """Task07_Pancreas: label 2 is the tumour; the archive holds macOS files."""
    home = root / "MSD" / "Task07_Pancreas"
    for seed, case in enumerate(wanted("pancreas", cases, "MSD")):
        image, mask = ball(1000 + seed)
        inside = np.argwhere(mask)
        mask[tuple(inside[len(inside) // 2])] = 2
        affine = scaled(3.0, 3.0, 3.0)
        save_nifti(home / "imagesTr" / f"{case}.nii.gz", image, affine)
        save_nifti(home / "labelsTr" / f"{case}.nii.gz", mask, affine)
        (home / "imagesTr" / f"._{case}.nii.gz").write_bytes(b"junk")
    save_nifti(home / "imagesTs" / "pancreas_002.nii.gz", ball(998)[0], scaled(3, 3, 3))


def write_btcv(root: Path, cases: int) -> None:
    """RawData: thirteen organs, 11 is the pancreas."""
    home = root / "BTCV" / "RawData" / "Training"
    for seed, case in enumerate(wanted("pancreas", cases, "BTCV")):
        image, mask = ball(2000 + seed)
        organs = np.where(mask, 11, 0).astype(np.uint8)
        organs[-4:, -4:, -4:] = 6
        organs[-4:, -4:, :4] = 1
        affine = scaled(2.5, 2.5, 4.0)
        save_nifti(home / "img" / f"{case}.nii.gz", image, affine)
        save_nifti(home / "label" / f"label{case[3:]}.nii.gz", organs, affine)


def write_tcia(root: Path, cases: int) -> None:
    """DICOM with rows from back to front, and labels (L, A, I) whose origin is another one."""
    home = root / "TCIA"
    for seed, case in enumerate(wanted("pancreas", cases, "TCIA")):
        image, mask = ball(3000 + seed)
        write_tcia_case(home, case, image, mask)
    for empty in ("PANCREAS_0025", "PANCREAS_0070"):
        (home / "manifest-1" / "Pancreas-CT" / empty).mkdir(parents=True)
        save_tcia_label(home, empty[-4:], ball(0)[1])


def write_tcia_case(home: Path, case: str, image: np.ndarray, mask: np.ndarray) -> Path:
    """`image` and `mask` in axes (L, A, I); returns the series' folder."""
    study = f"11-24-2015-{case.replace('_', '')}-Pancreas-18957"
    series = home / "manifest-1" / "Pancreas-CT" / case / study / "Pancreas-99667"
    write_series(series, image, (2.0, 2.0, 2.5), number=int(case[-4:]))
    save_tcia_label(home, case[-4:], mask)
    return series


def save_tcia_label(home: Path, number: str, mask: np.ndarray) -> None:
    affine = np.eye(4)
    affine[:3, :3] = LAI * (1.0, 1.0, 1.0)  # neither the spacing nor the origin is the image's
    folder = home / "TCIA_pancreas_labels-02-05-2017"
    save_nifti(folder / f"label{number}.nii.gz", mask, affine)


def write_series(
    folder: Path,
    image: np.ndarray,
    spacing: tuple[float, float, float],
    number: int = 1,
    orientation: str = r"1\0\0\0\-1\0",
) -> None:
    """Axial slices; image[i, j, k] is column i, row j, the k-th slice from the head down.

    Files are numbered upwards from the feet, as the archive's are not bound to any order.
    """
    folder.mkdir(parents=True)
    before = locale.setlocale(locale.LC_ALL)  # ITK's DICOM writer leaves the process in "C"
    slices = image.shape[2]
    uid = f"1.2.826.0.1.3680043.2.1125.{number}"
    writer = SimpleITK.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    for k in range(slices):
        part = SimpleITK.GetImageFromArray(np.ascontiguousarray(image[:, :, k].T))
        part.SetSpacing(spacing[:2])
        height = 100.0 + (slices - 1 - k) * spacing[2]
        tags = {
            "0008|0060": "CT",
            "0008|0018": f"{uid}.{k + 1}",
            "0020|000d": f"{uid}.9000",
            "0020|000e": f"{uid}.9001",
            "0020|0013": str(slices - k),
            "0020|0032": rf"-170\165\{height}",
            "0020|0037": orientation,
            "0018|0050": str(spacing[2]),
            "0028|1052": "0",
            "0028|1053": "1",
        }
        for tag, value in tags.items():
            part.SetMetaData(tag, value)
        writer.SetFileName(str(folder / f"1-{slices - k:03d}.dcm"))
        writer.Execute(part)
    locale.setlocale(locale.LC_ALL, before)


def write_pancreas(root: Path, cases: int) -> Path:
    """All three data sets below one root."""
    write_msd(root, cases)
    write_tcia(root, cases)
    write_btcv(root, cases)
    return root
