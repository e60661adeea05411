"""Settings that a study leaves open, derived from the fingerprint of its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import ValidationError, model_validator

from autofedavg.core.errors import ConfigError
from autofedavg.core.settings import setting
from autofedavg.tasks.imaging.pipeline import (
    BASIC_UNET,
    CommonPipeline,
    LossName,
    Normalise,
    Pipeline,
    Spacing,
    step,
)
from autofedavg.tasks.lists.fingerprint import Fingerprint

Auto = Literal["auto"]
AIR = -500.0  # darkest values below this, in most images: Hounsfield units
MOST_VOXELS = {2: 256 * 256, 3: 96 * 96 * 96}
WIDEST = 256


class OpenPipeline(CommonPipeline):
    """`Pipeline` with settings that may be left to the data: 'auto'."""

    spacing: Spacing | Auto = step(
        "spacing", "auto", "derived from the data: the median; 'keep' where a spacing is unknown"
    )
    normalise: Normalise | Auto = step(
        "normalise",
        "auto",
        "derived from the data: window for CT and bytes of colour, zscore otherwise",
    )
    window: tuple[float, float] | Auto = step(
        "window",
        "auto",
        "derived from the data: 0.5 to 99.5 percent of intensities under the labels of CT",
    )
    roi: tuple[int, ...] | Auto = step(
        "roi", "auto", "derived from the data: the median size, as far as memory allows"
    )
    overlap: float = step("overlap", 0.5, "ours", ge=0, lt=1)
    loss: LossName = step(
        "loss", "dice-ce", "ours: Dice alone learns nothing from crops without foreground"
    )
    channels: tuple[int, ...] | Auto = step(
        "channels", "auto", "derived from the data: 16 (3D) or 32 (2D), doubled at every level"
    )
    strides: tuple[tuple[int, ...], ...] | Auto = setting(
        "auto",
        origin="derived from the data: long axes first, as slices are thicker than pixels",
        help="how much the unet shrinks each axis from one width to the next",
    )

    def settled(self) -> bool:
        """Whether no setting is left to the data."""
        given = self.model_dump()
        if given["normalise"] in ("percentiles", "zscore"):
            del given["window"]
        return "auto" not in given.values()

    @model_validator(mode="after")
    def _fits_together(self) -> OpenPipeline:
        if isinstance(self.spacing, tuple) and min(self.spacing, default=0) <= 0:
            raise ValueError("spacing must have sizes above 0, or be 'keep' or 'auto'")
        if self.settled():
            try:
                self.pipeline()
            except ConfigError as error:
                raise ValueError(error.what) from error
        return self

    def pipeline(self) -> Pipeline:
        """The pipeline, if no setting is open; raises ConfigError if it is inconsistent."""
        given = {key: value for key, value in self.model_dump().items() if value != "auto"}
        try:
            return Pipeline.model_validate(given)
        except ValidationError as error:
            said = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(
                said, where="task.pipeline", remedy="change these settings"
            ) from error

    def settle(self, seen: Fingerprint) -> OpenPipeline:
        """A copy with all open settings derived from the data; raises ConfigError on a misfit."""
        self._refuse_misfits(seen)
        spacing = self.spacing
        if spacing == "auto":
            known = seen.spacing() if seen.axes == 3 else None
            spacing = "keep" if known is None else known
        size = _median_size(seen, spacing)
        strides = self.strides
        levels = None if self.channels == "auto" else len(self.channels) - 1
        if self.network == "basic-unet":
            strides, levels = (), 4
        steps = strides if isinstance(strides, tuple) and strides else None
        if steps is None:
            given = None if self.roi == "auto" else self.roi
            steps = _steps(size, given, levels, both=self.network == "basic-unet")
        normalise, window = self._intensities(seen)
        roi = self.roi if self.roi != "auto" else _roi(size, steps)
        first = 16 if seen.axes == 3 else 32
        channels = self.channels
        if channels == "auto":
            channels = tuple(min(first * 2**k, WIDEST) for k in range(len(steps) + 1))
            channels = BASIC_UNET if self.network == "basic-unet" else channels
        found = {
            "spacing": spacing,
            "normalise": normalise,
            "window": window,
            "roi": roi,
            "channels": channels,
            "strides": () if self.network == "basic-unet" else steps,
        }
        return filled(self, found)

    def _refuse_misfits(self, seen: Fingerprint) -> None:
        """Raises ConfigError unless sizes match the axes, and a spacing can be resampled."""
        strides = [("strides", stride) for stride in self.strides if self.strides != "auto"]
        for name, value in [("spacing", self.spacing), ("roi", self.roi), *strides]:
            if isinstance(value, tuple) and len(value) != seen.axes:
                raise ConfigError(
                    f"{name} has {len(value)} sizes, and the images have {seen.axes} axes",
                    where=f"task.pipeline.{name}",
                    remedy="give one size per axis, or 'auto'",
                )
        if isinstance(self.spacing, tuple) and seen.spacing() is None:
            raise ConfigError(
                "spacing is set, and the voxel spacing of some images is unknown",
                where="task.pipeline.spacing",
                remedy="set it to 'keep', or write the spacing into every file",
            )

    def _intensities(self, seen: Fingerprint) -> tuple[Normalise, tuple[float, float]]:
        """The normalisation: CT has fixed units, colour pictures a fixed range, others neither."""
        cases = seen.cases
        darkest = float(np.median([case.percentiles[0][0] for case in cases]))
        ct = seen.axes == 3 and seen.channels == 1 and darkest < AIR
        bytes_of_colour = seen.axes == 2 and all(case.eight_bit for case in cases)
        normalise = self.normalise
        if normalise == "auto":
            fixed = ct or bytes_of_colour or self.window != "auto"
            normalise = "window" if fixed else "zscore"
        window = self.window
        if window == "auto":
            window = (0.0, 255.0)
            if not bytes_of_colour:
                # Without minimum and maximum: each would count as a hundredth of a case.
                under = [v for c in cases for f in c.foreground for v in f[1:-1]]
                every = under or [v for c in cases for p in c.percentiles for v in p[1:-1]]
                low, high = (float(f"{v:.6g}") for v in np.percentile(every, (0.5, 99.5)))
                window = (low, high if high > low else low + max(1e-3, 1e-3 * abs(low)))
        return normalise, window


def filled(settings: OpenPipeline, found: Mapping[str, object]) -> OpenPipeline:
    """A copy with derived values; they keep the origin of their default."""
    changed = {key: value for key, value in found.items() if getattr(settings, key) != value}
    copy = settings.model_copy(update=changed)
    copy.__pydantic_fields_set__.difference_update(changed)
    return copy


def _median_size(seen: Fingerprint, spacing: object) -> tuple[int, ...]:
    """The median number of voxels along each axis, at the common spacing."""
    grids = np.array([case.grid for case in seen.cases], dtype=float)
    if isinstance(spacing, tuple):
        own = np.array([case.spacing for case in seen.cases], dtype=float)
        grids = grids * own / np.array(spacing)
    return tuple(max(1, int(n)) for n in np.round(np.median(grids, axis=0)))


def _steps(
    size: tuple[int, ...], roi: tuple[int, ...] | None, levels: int | None, *, both: bool
) -> tuple[tuple[int, ...], ...]:
    """Strides level by level: an axis is halved unless it is much shorter than the longest.

    A given roi is only halved where that leaves whole numbers.
    """
    left = [float(n) for n in roi or size]
    steps: list[tuple[int, ...]] = []
    while len(steps) < (4 if levels is None else levels):
        longest = max(left)
        halved = [n > longest / 2 and n >= 8 and not (roi and n % 2) for n in left]
        step = tuple(2 if both or half else 1 for half in halved)
        if levels is None and max(step) == 1:
            break
        steps.append(step)
        left = [n / s for n, s in zip(left, step, strict=True)]
    return tuple(steps) or ((1,) * len(size),)


def _roi(size: tuple[int, ...], steps: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The median size, reduced in steps of the network until a crop is small enough."""
    times = np.prod(np.array(steps), axis=0)
    roi = [max(int(t), int(np.ceil(n / t) * t)) for n, t in zip(size, times, strict=True)]
    while np.prod(roi) > MOST_VOXELS[len(size)]:
        large = [r if r > t else 0 for r, t in zip(roi, times, strict=True)]
        if not any(large):
            break
        axis = int(np.argmax(large))
        roi[axis] -= int(times[axis])
    if tuple(roi) == tuple(int(t) for t in times):  # the network needs more than one voxel below
        roi[int(np.argmax(size))] *= 2
    return tuple(roi)
