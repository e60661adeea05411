"""From image files to what a client holds in memory: the deterministic steps, with their checks.

load -> RAS -> common spacing -> window -> pad. A file that cannot be used is told with all others.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from autofedavg.errors import DataError
from autofedavg.settings import Settings, setting
from autofedavg.task import Progress

with warnings.catch_warnings():
    # MONAI warns of optional packages while it is imported.
    warnings.simplefilter("ignore")
    from monai.transforms import (
        Compose,
        EnsureChannelFirstd,
        LoadImaged,
        Orientationd,
        ScaleIntensityRanged,
        Spacingd,
        SpatialPadd,
    )
    from monai.transforms.utils import map_binary_to_indices


class Case(NamedTuple):
    """One patient's volume and its label, as files."""

    case: str
    split: str
    image: Path
    label: Path


class Pipeline(Settings):
    """How volumes become batches, and predictions become scores."""

    spacing: tuple[float, float, float] = setting(
        (0.8, 0.8, 5.0), origin="paper Sec. 4.2.1", help="common voxel spacing in mm"
    )
    window: tuple[float, float] = setting(
        (-1000.0, 500.0),
        origin="derived from the same group's lesion model",
        help="intensities mapped to [0, 1], clipped",
    )
    roi: tuple[int, int, int] = setting(
        (256, 256, 32), origin="paper Sec. 4.2.1", help="size of training crops and of the window"
    )
    overlap: float = setting(
        0.75,
        origin="paper Sec. 4.2.1 (stride 64, 64, 8)",
        help="overlap of sliding windows",
        ge=0,
        lt=1,
    )
    foreground: float = setting(
        0.5,
        origin="derived from the paper's source (1:1)",
        help="share of crops centred on foreground",
        ge=0,
        le=1,
    )
    flip: float = setting(
        0.1,
        origin="derived from the same group's lesion model",
        help="chance to flip an axis",
        ge=0,
        le=1,
    )
    shift: float = setting(
        0.1,
        origin="derived from the same group's lesion model",
        help="largest intensity shift",
        ge=0,
    )
    channels: tuple[int, ...] = setting(
        (16, 32, 64, 128, 256),
        origin="ours: the paper is silent",
        help="U-Net widths, top to bottom",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Pipeline:
        halvings = 2 ** (len(self.channels) - 1)
        if len(self.channels) < 2:
            raise ValueError("channels needs at least two widths")
        if any(size % halvings for size in self.roi):
            raise ValueError(
                f"every size of roi must be a multiple of {halvings} for {len(self.channels)} "
                f"channels, not {self.roi}"
            )
        if min(self.spacing) <= 0 or self.window[0] >= self.window[1]:
            raise ValueError("spacing must be above 0, and window must rise")
        return self


@dataclass(frozen=True)
class Prepared:
    """A case after its deterministic steps."""

    case: str
    image: Tensor
    label: Tensor
    foreground: np.ndarray
    background: np.ndarray
    affine: Tensor
    original: Tensor
    original_affine: Tensor


def prepare_site(
    site: str,
    cases: Sequence[Case],
    how: Pipeline,
    progress: Progress | None = None,
) -> dict[str, list[Prepared]]:
    """Reads and prepares all cases of a site, by split.

    Raises:
        DataError: no case of a split, or files that do not fit; all are listed.
    """
    for split in ("train", "validation", "test"):
        if not any(case.split == split for case in cases):
            raise DataError(
                f"no {split} case",
                where=f"site {site}",
                remedy=f"give this site at least one {split} case, or leave it out",
            )
    chain = _chain(how)
    ready: dict[str, list[Prepared]] = {"train": [], "validation": [], "test": [], "holdout": []}
    wrong = []
    for done, case in enumerate(cases):
        try:
            ready[case.split].append(_prepare(case, chain))
        except DataError as error:
            wrong.append(str(error))
        if progress:
            progress(f"preparing {site}", done + 1, len(cases))
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(cases)} cases cannot be used:\n  " + "\n  ".join(wrong),
            where=f"site {site}",
            remedy="mend or remove them",
        )
    return ready


def _chain(how: Pipeline) -> Compose:
    both = ["image", "label"]
    return Compose(
        [
            Orientationd(both, axcodes="RAS", labels=None),
            Spacingd(both, pixdim=how.spacing, mode=("bilinear", "nearest")),
            ScaleIntensityRanged(
                "image", a_min=how.window[0], a_max=how.window[1], b_min=0, b_max=1, clip=True
            ),
            SpatialPadd(both, spatial_size=how.roi),
        ]
    )


_load = Compose(
    [LoadImaged(["image", "label"], image_only=True), EnsureChannelFirstd(["image", "label"])]
)


def _prepare(case: Case, chain: Compose) -> Prepared:
    for path in (case.image, case.label):
        if not path.is_file():
            raise DataError("no such file", where=str(path))
    try:
        loaded = _load({"image": case.image, "label": case.label})
    except Exception as error:
        raise DataError(
            f"cannot be read ({str(error).splitlines()[0]})", where=f"{case.image} and its label"
        ) from error
    image, label = loaded["image"], loaded["label"]
    if image.shape != label.shape:
        raise DataError(
            f"its grid is {tuple(label.shape[1:])}, the image's {tuple(image.shape[1:])}",
            where=str(case.label),
        )
    if not torch.allclose(image.affine, label.affine, atol=1e-3):
        raise DataError("it lies elsewhere in space than its image", where=str(case.label))
    if not bool(torch.isfinite(image).all()):
        raise DataError("it holds numbers that are not finite", where=str(case.image))
    values = set(torch.unique(label).tolist())
    if not values <= {0.0, 1.0}:
        raise DataError(f"its values are {sorted(values)}, expected 0 and 1", where=str(case.label))
    original, original_affine = label.as_tensor().to(torch.uint8).clone(), image.affine
    done = chain({"image": image, "label": label})
    foreground, background = map_binary_to_indices(done["label"].as_tensor())
    return Prepared(
        case.case,
        done["image"].as_tensor().contiguous(),
        done["label"].as_tensor().to(torch.uint8).contiguous(),
        foreground,
        background,
        done["image"].affine,
        original,
        original_affine,
    )
