"""Readers of image files: NIfTI, NRRD, MetaImage, PNG, JPEG, TIFF; DICOM has its own module.

All formats give the same array for the same picture: x, y, z as the affine says in three
dimensions, and rows, columns in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """The content of an image file, or its header: then `values` has the shape alone."""

    values: np.ndarray  # (C, *grid), two or three spatial axes; float32, or an integer type
    affine: np.ndarray | None  # (4, 4) from voxel to mm in RAS, or None where the file does not say
    # Whether the affine's unit is known to be mm; if not, it only identifies the grid.
    in_mm: bool = True
    # Where there is no affine, that of a slice: a label must lie where its image does.
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


def read_file(path: Path, *, pixels: bool = True, colours: bool = True) -> Scan:
    """Reads a file other than DICOM, or only its header; pictures, which are small, always whole.

    `colours` turns palettes into colours.
    """
    name = path.name.lower()
    if name.endswith(FLAT):
        return _read_flat(path, colours)
    if name.endswith(NIFTI):
        return _read_nifti(path, pixels)
    if name.endswith(ITK):
        return from_itk(SimpleITK.ReadImage(str(path))) if pixels else itk_header(path)
    raise DataError(
        f"unknown image format *{path.suffix or path.name}",
        where=str(path),
        remedy=f"use a folder of DICOM files, or one of {' '.join((*NIFTI, *ITK, *FLAT))}",
    )


def blank(shape: Sequence[int]) -> np.ndarray:
    """The values of a header: an array of this shape that takes no memory."""
    return np.broadcast_to(np.uint8(0), tuple(shape))


def _read_nifti(path: Path, pixels: bool) -> Scan:
    image = nib.load(path)
    values = np.asanyarray(image.dataobj) if pixels else blank(image.shape)
    if values.ndim > 3:  # channels come last; a fifth axis holds vectors
        values = values.reshape(*values.shape[:3], -1)
    else:
        values = values.reshape(*values.shape, *(1,) * (4 - values.ndim))
    affine, stored, in_mm = _nifti_place(image)
    return _volume(np.moveaxis(values, -1, 0), affine, in_mm, stored)


def _volume(
    values: np.ndarray, affine: np.ndarray | None, in_mm: bool, lies: np.ndarray | None
) -> Scan:
    """(C, x, y, z) as a scan; a single slice becomes (C, rows, columns), as pictures have it."""
    if values.shape[-1] == 1:
        return Scan(values[..., 0].swapaxes(1, 2), None, lies=lies)
    return Scan(values, affine, in_mm)


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


def from_itk(image: Any) -> Scan:
    """A SimpleITK image."""
    array = SimpleITK.GetArrayFromImage(image)  # z, y, x and channels last
    several = image.GetNumberOfComponentsPerPixel() > 1
    return _itk_scan(np.moveaxis(array, -1, 0) if several else array[None], image)


def itk_header(path: Path) -> Scan:
    """The header of a file that SimpleITK reads."""
    reader = SimpleITK.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    return _itk_scan(blank((reader.GetNumberOfComponents(), *reader.GetSize()[::-1])), reader)


def _itk_scan(values: np.ndarray, image: Any) -> Scan:
    """(C, [z,] y, x) with the place of an image or of its reader, turned from LPS to RAS."""
    if image.GetDimension() not in (2, 3):
        raise ValueError(f"it has {image.GetDimension()} axes")
    if image.GetDimension() == 2:
        return Scan(values, None)
    affine, in_mm = _itk_place(image)
    return _volume(values.transpose(0, 3, 2, 1), affine, in_mm, affine)


def _itk_place(image: Any) -> tuple[np.ndarray, bool]:
    """The affine in RAS of an image or its reader, and whether its unit can be mm."""
    affine = np.eye(4)
    direction = np.array(image.GetDirection()).reshape(3, 3)
    affine[:3, :3] = direction * np.array(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    # A file without spacing and origin has 1 and 0 in these formats.
    return _LPS_TO_RAS @ affine, not np.array_equal(affine, np.eye(4))


def _read_flat(path: Path, colours: bool) -> Scan:
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
    return Scan(np.moveaxis(values, -1, 0) if values.ndim == 3 else values[None], None)


def plain(values: np.ndarray) -> np.ndarray:
    """The values in a row, in native byte order; floats as float32."""
    if values.dtype.kind not in "fiu":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    kind = np.float32 if values.dtype.kind == "f" else values.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # overflow becomes infinite, which is refused later
        return np.ascontiguousarray(values, dtype=kind)
