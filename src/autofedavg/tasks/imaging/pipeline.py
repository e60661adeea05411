"""The settings of segmentation: from files to batches, and from predictions to scores."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import model_validator

from autofedavg.core.settings import Settings, setting

Spacing = tuple[float, ...] | Literal["keep"]
Normalise = Literal["window", "percentiles", "zscore"]
Network = Literal["unet", "basic-unet"]
LossName = Literal["dice", "dice-ce"]
LESION_MODEL = "derived from the same group's lesion model"
SILENT = "ours: the paper is silent"
UNET = (16, 32, 64, 128, 256)
BASIC_UNET = (32, 32, 64, 128, 256, 32)
HELP = {
    "channels": "widths of the network, top to bottom",
    "crop": "cut away what is empty around the body",
    "flip": "chance to flip an axis",
    "foreground": "share of crops centred on foreground",
    "loss": "Dice with squared denominators, or that plus cross entropy",
    "network": "MONAI's UNet or BasicUNet",
    "normalise": "intensities by a fixed window, or each image's own: percentiles, mean and spread",
    "overlap": "overlap of sliding windows",
    "residual_units": "residual units per level of the unet",
    "roi": "size of training crops and of the window",
    "shift": "largest intensity shift",
    "spacing": "common voxel spacing in mm; 'keep' leaves every grid as it is",
    "strides": "how much the unet shrinks each axis from one width to the next; 2 when empty",
    "window": "intensities mapped to [0, 1], clipped; of no use to the other ways to normalise",
}


def step(name: str, default: Any, origin: str, **limits: Any) -> Any:
    """A setting of a pipeline; its help is the same in all tasks."""
    return setting(default, origin=origin, help=HELP[name], **limits)


class CommonPipeline(Settings):
    """Settings that never depend on the data."""

    crop: bool = step("crop", False, "ours")
    foreground: float = step("foreground", 0.5, "derived from the paper's source (1:1)", ge=0, le=1)
    flip: float = step("flip", 0.1, LESION_MODEL, ge=0, le=1)
    shift: float = step("shift", 0.1, LESION_MODEL, ge=0)
    network: Network = step("network", "unet", SILENT)
    residual_units: int = step("residual_units", 0, SILENT, ge=0)


class Pipeline(CommonPipeline):
    """The steps from images to batches and from predictions to scores, in two or three axes."""

    spacing: Spacing = step("spacing", (0.8, 0.8, 5.0), "paper Sec. 4.2.1")
    normalise: Normalise = step("normalise", "window", LESION_MODEL)
    window: tuple[float, float] = step("window", (-1000.0, 500.0), LESION_MODEL)
    roi: tuple[int, ...] = step("roi", (256, 256, 32), "paper Sec. 4.2.1")
    overlap: float = step("overlap", 0.75, "paper Sec. 4.2.1 (stride 64, 64, 8)", ge=0, lt=1)
    loss: LossName = step("loss", "dice", "paper Sec. 4.2.1")
    channels: tuple[int, ...] = step(
        "channels",
        lambda known: BASIC_UNET if known.get("network") == "basic-unet" else UNET,
        f"{SILENT}; derived from MONAI's challenge baseline for basic-unet",
    )
    strides: tuple[tuple[int, ...], ...] = step("strides", (), SILENT)

    @property
    def axes(self) -> int:
        """Two or three."""
        return len(self.roi)

    @property
    def shrinking(self) -> tuple[tuple[int, ...], ...]:
        """The strides, written out."""
        levels = 4 if self.network == "basic-unet" else len(self.channels) - 1
        return self.strides or ((2,) * self.axes,) * levels

    @model_validator(mode="after")
    def _fits_together(self) -> Pipeline:
        if self.axes not in (2, 3):
            raise ValueError(f"roi must have two or three sizes, not {self.axes}")
        if min(self.roi) < 1:
            raise ValueError(f"every size of roi must be above 0, not {self.roi}")
        if self.spacing != "keep" and (len(self.spacing) != self.axes or min(self.spacing) <= 0):
            raise ValueError(f"spacing must have {self.axes} sizes above 0, like roi, or be 'keep'")
        if self.axes == 2 and (self.spacing != "keep" or self.crop):
            raise ValueError("flat images have no spacing: set spacing = 'keep' and crop = false")
        if self.window[0] >= self.window[1]:
            raise ValueError("window must rise")
        self._check_network()
        times = [math.prod(stride[axis] for stride in self.shrinking) for axis in range(self.axes)]
        for size, by in zip(self.roi, times, strict=True):
            if size % by:
                raise ValueError(
                    f"every size of roi must be a multiple of the network's stride: "
                    f"{size} is not a multiple of {by}"
                )
        if tuple(times) == self.roi:  # instance norm needs more than one value
            raise ValueError(
                f"the network shrinks roi {self.roi} to a single voxel: enlarge roi, or take "
                "fewer channels"
            )
        return self

    def _check_network(self) -> None:
        if self.network == "basic-unet":
            if len(self.channels) != 6 or self.strides or self.residual_units:
                raise ValueError(
                    "basic-unet takes six channels, and neither strides nor residual units"
                )
            return
        if len(self.channels) < 2 or min(self.channels) < 1:
            raise ValueError("channels needs at least two widths above 0")
        if len(self.shrinking) != len(self.channels) - 1 or any(
            len(stride) != self.axes or min(stride) < 1 for stride in self.shrinking
        ):
            raise ValueError(
                f"strides needs {len(self.channels) - 1} entries of {self.axes} numbers from 1"
            )

    def chain(self) -> dict[str, Any]:
        """The settings that prepared files depend on: pipelines that agree here share a cache."""
        window = list(self.window) if self.normalise == "window" else None
        spacing = self.spacing if self.spacing == "keep" else list(self.spacing)
        named = {"spacing": spacing, "normalise": self.normalise}
        return {**named, "window": window, "crop": self.crop}
