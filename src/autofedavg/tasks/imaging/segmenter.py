"""A trained network applied to image files; the prediction is a label file on the image's grid.

The label file takes over only the grid of the image's header. Its other fields may identify the
patient, or describe intensities that a label does not have.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from PIL import Image
from torch import nn

from autofedavg.core.errors import DataError
from autofedavg.tasks.base import Segmentation
from autofedavg.tasks.imaging.files import look, read
from autofedavg.tasks.imaging.image import prepare_layers, refuse_misfit, refuse_unusable, size_text
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import predict
from autofedavg.tasks.imaging.readers import NIFTI, Scan

VOLUME, PICTURE = ".nii.gz", ".png"
SCANNER, ALIGNED = 1, 2  # NIfTI's codes: coordinates of the scanner, or of another file
LEVEL = 6  # of compression; the highest takes much longer and saves little
# The fields of a NIfTI header that describe its grid.
GRID = (
    "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y",
    "qoffset_z", "srow_x", "srow_y", "srow_z", "xyzt_units",
)  # fmt: skip


class ImageSegmenter:
    """Applies networks that were trained with one pipeline on images of so many channels."""

    def __init__(self, how: Pipeline, channels: int, classes: Sequence[str]) -> None:
        self._how, self._channels, self.classes = how, channels, tuple(classes)

    def ending(self, image: Sequence[Path]) -> str:
        """The suffix of an image's prediction; refuses images whose headers do not fit."""
        header, how, named = look(image), self._how, str(image[0])
        channels = len(header.values)
        if len(header.grid) < how.axes:
            raise DataError(
                "it is a flat image, and the model was trained on volumes",
                where=named,
                remedy="name volumes: NIfTI, NRRD, MetaImage, or the folder of a DICOM series",
            )
        if len(header.grid) > how.axes:
            raise DataError(
                f"it is a volume of {size_text(header.grid)} voxels, and the model was trained on "
                "flat images",
                where=named,
                remedy="name pictures, or files of one slice each",
            )
        if channels != self._channels:
            raise DataError(
                f"it has {_counted(channels)}, and the model was trained on "
                f"{_counted(self._channels)}",
                where=named,
                remedy="join the files of one case with '|', in the order of the training list"
                if channels < self._channels
                else "name the channels the model was trained on, and no others",
            )
        # The spacing of a series is that between its slices: its header only says where it lies.
        if how.spacing != "keep" and header.spacing is None and header.lies is None:
            raise DataError(
                "its voxel spacing is unknown, and the model sees images at "
                f"{' x '.join(f'{size:g}' for size in how.spacing)} mm",
                where=named,
                remedy="write the spacing into the file",
            )
        return PICTURE if _is_picture(image[0], header) else VOLUME

    def segment(self, network: nn.Module, image: Sequence[Path]) -> Segmentation:
        """The prediction for one image, on its own grid."""
        scan, how, named = read(image), self._how, str(image[0])
        refuse_unusable(scan, named)
        refuse_misfit(scan, how, named)
        layers = [scan.values.astype(np.float32)]
        sized = scan.spacing
        scan = replace(scan, values=np.empty(0))  # a CT is large
        prepared, _ = prepare_layers(layers, scan.affine, how, named)
        found = predict(network, prepared, how, len(self.classes)).numpy()
        # Row by row: counting takes eight times the memory of what is counted.
        counts = np.zeros(len(self.classes) + 1, np.int64)
        for row in found:
            counts += np.bincount(row.ravel(), minlength=len(counts))
        voxels = tuple(int(n) for n in counts[1:])
        ml = None
        if sized is not None and scan.affine is not None:
            voxel = abs(float(np.linalg.det(scan.affine[:3, :3])))
            ml = tuple(n * voxel / 1000 for n in voxels)
        return Segmentation(label_file(found, image[0], scan), voxels, ml)


def _counted(channels: int) -> str:
    return "1 channel" if channels == 1 else f"{channels} channels"


def label_file(label: np.ndarray, path: Path, scan: Scan) -> bytes:
    """The content of a label file; equal labels give equal bytes.

    The label, uint8, is on the grid of the image; `path` is the first file of the image, `scan` its
    content, of which the values are not used.
    """
    if _is_picture(path, scan):
        made = io.BytesIO()
        Image.fromarray(label).save(made, "PNG")
        return made.getvalue()
    if path.name.lower().endswith(NIFTI):
        return _like_nifti(label, path)
    return _placed(label, scan.lies if scan.affine is None else scan.affine, scan.in_mm)


def _is_picture(path: Path, scan: Scan) -> bool:
    """Whether a file has no position in space."""
    return not path.name.lower().endswith(NIFTI) and scan.affine is None and scan.lies is None


def _like_nifti(label: np.ndarray, path: Path) -> bytes:
    """On the very grid of a NIfTI file: its sizes, both its transforms and their codes."""
    image = nib.load(path)
    kind = nib.Nifti2Image if isinstance(image, nib.Nifti2Image) else nib.Nifti1Image
    header = kind.header_class()
    header.set_data_dtype(np.uint8)
    header.set_data_shape(image.shape[:3])
    for name in GRID:
        header[name] = image.header[name]
    header["pixdim"][:4] = image.header["pixdim"][:4]
    return _compressed(kind(_columns_first(label).reshape(image.shape[:3]), None, header))


def _placed(label: np.ndarray, affine: np.ndarray | None, in_mm: bool) -> bytes:
    """On the grid of an image of another format."""
    values = _columns_first(label)
    made = nib.Nifti1Image(values.reshape(*values.shape, *(1,) * (3 - values.ndim)), affine)
    code = SCANNER if in_mm else ALIGNED
    made.set_sform(affine, code)
    made.set_qform(affine, code)
    made.header.set_xyzt_units("mm" if in_mm else "unknown")
    return _compressed(made)


def _columns_first(label: np.ndarray) -> np.ndarray:
    """(rows, columns) of a single slice -> (x, y); volumes stay."""
    return label.T if label.ndim == 2 else label


def _compressed(image: Any) -> bytes:
    return gzip.compress(image.to_bytes(), LEVEL, mtime=0)
