"""A trained network applied to image files: prepared as in training, answered on their own grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from autofedavg.core.errors import DataError
from autofedavg.tasks.base import Segmentation
from autofedavg.tasks.imaging.files import look, read
from autofedavg.tasks.imaging.image import (
    prepare_layers,
    refuse_misfit,
    refuse_unusable,
    size_text,
)
from autofedavg.tasks.imaging.labelfile import ending_for, label_file
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prediction import predict


class ImageSegmenter:
    """Applies networks of one pipeline.

    Args:
        how: the pipeline they were trained with.
        channels: of an image.
        classes: their names, in the order of the network's outputs.
    """

    def __init__(self, how: Pipeline, channels: int, classes: Sequence[str]) -> None:
        self._how, self._channels, self.classes = how, channels, tuple(classes)

    def ending(self, image: Sequence[Path]) -> str:
        """How the file of an image's prediction is to end; refuses what headers tell against."""
        header, how, named = look(image), self._how, str(image[0])
        if len(header.grid) != how.axes:
            flat = len(header.grid) == 2
            raise DataError(
                "it is a flat image, and the model was trained on volumes"
                if flat
                else f"it is a volume of {size_text(header.grid)} voxels, and the model was "
                "trained on flat images",
                where=named,
                remedy="name whole volumes: NIfTI, NRRD, MetaImage, or the folder of a DICOM series"
                if flat
                else "name pictures, or files of one slice each",
            )
        if header.channels != self._channels:
            raise DataError(
                f"it has {_counted(header.channels)}, and the model was trained on "
                f"{_counted(self._channels)}",
                where=named,
                remedy="join the files of one case with '|', in the order of the training list"
                if header.channels < self._channels
                else "name the channels the model was trained on, and no others",
            )
        if how.spacing != "keep" and not header.spaced:
            raise DataError(
                "its voxel spacing is unknown, and the model sees images at "
                f"{' x '.join(f'{size:g}' for size in how.spacing)} mm",
                where=named,
                remedy="write the spacing into the file",
            )
        return ending_for(header)

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
