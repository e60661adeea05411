"""A label as a file that lies where its image does: NIfTI for what has a place in space, or PNG.

Only the grid is taken over from the image's header: its other fields may tell of the patient, or of
intensities that a label does not have.
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np

from autofedavg.tasks.imaging.files import NIFTI, Header, Scan

VOLUME, PICTURE = ".nii.gz", ".png"
SCANNER, ALIGNED = 1, 2  # NIfTI's codes: coordinates of the scanner, or of another file
LEVEL = 6  # of compression; the highest takes much longer and saves little
# What a NIfTI header says of its grid.
GRID = (
    "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y",
    "qoffset_z", "srow_x", "srow_y", "srow_z", "xyzt_units",
)  # fmt: skip


def ending_for(header: Header) -> str:
    """How the file of a label is to end."""
    return VOLUME if header.placed else PICTURE


def label_file(label: np.ndarray, path: Path, scan: Scan) -> bytes:
    """The file of a label, which is the same for the same label.

    Args:
        label: uint8, on the grid of the image, as its reader gives it.
        path: the image's file, or the first of them.
        scan: what was read from there; its values are not used.
    """
    if path.name.lower().endswith(NIFTI):
        return _like_nifti(label, path)
    affine = scan.lies if scan.affine is None else scan.affine
    return _picture(label) if affine is None else _placed(label, affine, scan.in_mm)


def _like_nifti(label: np.ndarray, path: Path) -> bytes:
    """On the very grid of a NIfTI file: its sizes, both its transforms and their codes."""
    import nibabel as nib

    image = nib.load(path)
    kind = nib.Nifti2Image if isinstance(image, nib.Nifti2Image) else nib.Nifti1Image
    header = kind.header_class()
    header.set_data_dtype(np.uint8)
    header.set_data_shape(image.shape[:3])
    for name in GRID:
        header[name] = image.header[name]
    header["pixdim"][:4] = image.header["pixdim"][:4]
    return _compressed(kind(_columns_first(label).reshape(image.shape[:3]), None, header))


def _placed(label: np.ndarray, affine: np.ndarray, in_mm: bool) -> bytes:
    """On the grid of an image of another format."""
    import nibabel as nib

    values = _columns_first(label)
    made = nib.Nifti1Image(values.reshape(*values.shape, *(1,) * (3 - values.ndim)), affine)
    code = SCANNER if in_mm else ALIGNED
    made.set_sform(affine, code)
    made.set_qform(affine, code)
    made.header.set_xyzt_units("mm" if in_mm else "unknown")
    return _compressed(made)


def _picture(label: np.ndarray) -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.fromarray(label).save(made, "PNG")
    return made.getvalue()


def _columns_first(label: np.ndarray) -> np.ndarray:
    """(rows, columns) of a single slice -> (x, y); volumes stay."""
    return label.T if label.ndim == 2 else label


def _compressed(image: Any) -> bytes:
    return gzip.compress(image.to_bytes(), LEVEL, mtime=0)
