"""Readers of image files: NIfTI, NRRD, MetaImage, PNG, JPEG, TIFF; DICOM has its own module.

All formats give the same array for the same picture: x, y, z as the affine says in three
dimensions, and rows, columns in two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import SimpleITK
from PIL import Image, ImageOps

from autofedavg.core.errors import DataError

NIFTI = (".nii", ".nii.gz")
ITK = (".nrrd", ".nhdr", ".mha", ".mhd")
FLAT = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
DICOM = (".dcm", ".dicom", ".ima")
COLOURED = ("RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
INDEXED = ("P", "PA")  # in a label, the numbers of the palette are the classes
TO_MM = {"meter": 1000.0, "micron": 0.001}
_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True)
class Scan:
    """The content of an image file."""

    values: np.ndarray  # (C, *grid), two or three spatial axes; float32, or an integer type
    affine: np.ndarray | None  # (4, 4) from voxel to mm in RAS, or None where the file does not say
    # Whether the affine's unit is known to be mm; if not, it only identifies the grid.
    in_mm: bool = True
    # Of a single slice, the affine of its file: a label must lie where its image does.
    lies: np.ndarray | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.values.shape[1:])

    @property
    def spacing(self) -> tuple[float, ...] | None:
        """Voxel size in mm along each axis, where it is known."""
        if self.affine is None or not self.in_mm:
            return None
        return tuple(float(v) for v in np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)))


@dataclass(frozen=True)
class Header:
    """The properties of an image file that are known before its voxels are read."""

    channels: int  # of the image
    grid: tuple[int, ...]  # two or three sizes, as those of its `Scan`
    # As that of its `Scan`; None also if it depends on slices that were not read.
    affine: np.ndarray | None
    spaced: bool  # whether a voxel's size in mm is known
    placed: bool  # whether the file has a position in space; pictures do not


def reader_of(path: Path, *, colours: bool = True) -> Callable[[Path], Scan]:
    """The reader for a file other than DICOM; `colours` turns palettes into colours."""
    name = path.name.lower()
    if name.endswith(FLAT):
        return partial(_read_flat, colours=colours)
    for endings, reader in ((NIFTI, _read_nifti), (ITK, _read_itk)):
        if name.endswith(endings):
            return reader
    raise DataError(
        f"unknown image format *{path.suffix or path.name}",
        where=str(path),
        remedy=f"use a folder of DICOM files, or one of {' '.join((*NIFTI, *ITK, *FLAT))}",
    )


def _read_nifti(path: Path) -> Scan:
    image = nib.load(path)
    values = np.asanyarray(image.dataobj)
    if values.ndim > 3:  # channels come last; a fifth axis holds vectors
        values = values.reshape(*values.shape[:3], -1)
    else:
        values = values.reshape(*values.shape, *(1,) * (4 - values.ndim))
    values = plain(np.moveaxis(values, -1, 0))
    if values.shape[-1] == 1:
        return Scan(_rows_first(values[..., 0]), None, lies=_nifti_place(image)[1])
    affine, _, in_mm = _nifti_place(image)
    return Scan(values, affine, in_mm)


def nifti_header(path: Path) -> Header:
    """The header of a NIfTI file."""
    image = nib.load(path)
    sizes = (*image.shape, *(1,) * (3 - len(image.shape)))
    affine, _, in_mm = _nifti_place(image)
    grid = sizes[:3] if sizes[2] > 1 else (sizes[1], sizes[0])
    flat = len(grid) == 2
    spaced = not flat and affine is not None and in_mm
    return Header(math.prod(sizes[3:]), grid, None if flat else affine, spaced, placed=True)


def _nifti_place(image: Any) -> tuple[np.ndarray | None, np.ndarray | None, bool]:
    """(affine in mm or None, affine as stored or None, whether the unit is known to be mm)."""
    affine = np.asarray(image.affine, dtype=np.float64)
    coded = bool(int(image.header["qform_code"]) or int(image.header["sform_code"]))
    # Many tools leave the unit out, so a missing unit means nothing; but an identity affine is
    # rarely a measurement.
    unit = image.header.get_xyzt_units()[0]
    named = unit != "unknown"
    measured = coded and not np.array_equal(affine, np.eye(4))
    in_mm = affine.copy()
    in_mm[:3] *= TO_MM.get(unit, 1.0)
    return in_mm if coded or named else None, affine if coded else None, named or measured


def _read_itk(path: Path) -> Scan:
    return from_itk(SimpleITK.ReadImage(str(path)))


def from_itk(image: Any) -> Scan:
    """A SimpleITK image, turned from LPS to RAS."""
    dimension = _dimension(image)
    array = SimpleITK.GetArrayFromImage(image)  # z, y, x and channels last
    several = image.GetNumberOfComponentsPerPixel() > 1
    channels = np.moveaxis(array, -1, 0) if several else array[None]
    if dimension == 2:
        return Scan(plain(channels), None)
    values = plain(channels.transpose(0, 3, 2, 1))
    affine, in_mm = _itk_place(image)
    if values.shape[-1] == 1:
        return Scan(_rows_first(values[..., 0]), None, lies=affine)
    return Scan(values, affine, in_mm)


def itk_header(path: Path) -> Header:
    """The header of a file that SimpleITK reads."""
    reader = SimpleITK.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    channels, sizes = int(reader.GetNumberOfComponents()), tuple(map(int, reader.GetSize()))
    if _dimension(reader) == 2:
        return Header(channels, sizes[::-1], None, spaced=False, placed=False)
    if sizes[2] == 1:
        return Header(channels, sizes[1::-1], None, spaced=False, placed=True)
    affine, in_mm = _itk_place(reader)
    return Header(channels, sizes, affine, in_mm, placed=True)


def _dimension(image: Any) -> int:
    if image.GetDimension() not in (2, 3):
        raise ValueError(f"it has {image.GetDimension()} axes")
    return int(image.GetDimension())


def _itk_place(image: Any) -> tuple[np.ndarray, bool]:
    """The affine in RAS of an image or its reader, and whether its unit can be mm."""
    affine = np.eye(4)
    direction = np.array(image.GetDirection()).reshape(3, 3)
    affine[:3, :3] = direction * np.array(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    # A file without spacing and origin has 1 and 0 in these formats.
    return _LPS_TO_RAS @ affine, not np.array_equal(affine, np.eye(4))


def _read_flat(path: Path, *, colours: bool) -> Scan:
    with Image.open(path) as opened:
        pages = getattr(opened, "n_frames", 1)
        if pages > 1:
            raise ValueError(f"it holds {pages} pages")
        image = ImageOps.exif_transpose(opened)
        if image.mode in ("LA", "La"):
            image = image.convert("L")
        elif image.mode in (COLOURED + INDEXED if colours else COLOURED):
            image = image.convert("RGB")
        values = np.array(image)
    if values.dtype == bool:
        values = values.astype(np.uint8)
    return Scan(plain(np.moveaxis(values, -1, 0) if values.ndim == 3 else values[None]), None)


def _rows_first(values: np.ndarray) -> np.ndarray:
    """(C, x, y) -> (C, rows, columns), as pictures have it."""
    return np.ascontiguousarray(values.transpose(0, 2, 1))


def plain(values: np.ndarray) -> np.ndarray:
    """Native byte order; floats as float32."""
    if values.dtype.kind not in "fiu":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    kind = np.float32 if values.dtype.kind == "f" else values.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # overflow becomes infinite, which is refused later
        return np.ascontiguousarray(values, dtype=kind)
