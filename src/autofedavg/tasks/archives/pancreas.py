"""The pancreas in abdominal CT from three public data sets: the paper's Sec. 4.3."""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.settings import setting
from autofedavg.tasks.archives.public import PublicPipeline, PublicTask
from autofedavg.tasks.imaging.pipeline import LESION_MODEL, Spacing, step

COMMENT = "derived from the paper's withdrawn source comment"


class PancreasPipeline(PublicPipeline):
    """The paper's settings for the pancreas; where it is silent, those of its COVID-19 study."""

    spacing: Spacing = step("spacing", (1.0, 1.0, 1.0), COMMENT)
    window: tuple[float, float] = step(
        "window",
        (-87.0, 199.0),
        "derived from the same group's DiNTS settings for the Decathlon's pancreas",
    )
    crop: bool = step("crop", True, LESION_MODEL)
    roi: tuple[int, ...] = step("roi", (192, 192, 192), COMMENT)
    overlap: float = step("overlap", 0.75, f"{COMMENT} (stride 48)", ge=0, lt=1)


class Pancreas(PublicTask):
    """The pancreas in MSD, TCIA and BTCV; tumours in it count as pancreas, other organs do not.

    Note:
        Two of TCIA's 82 scans were withdrawn in 2020 as copies of a third. They are never used;
        the third is in the training split.
    """

    heading: ClassVar[str] = "The pancreas in abdominal CT: the paper's three public data sets."
    published: ClassVar[str] = (
        "pancreas in MSD Task07, TCIA Pancreas-CT and BTCV, split in the paper's sizes, the cases "
        "drawn by us"
    )
    structure: ClassVar[str] = "pancreas"
    typical: ClassVar[int] = 400 * 330 * 250 * 3 + 512 * 512 * 100

    name: Literal["pancreas"] = "pancreas"
    pipeline: PancreasPipeline = setting(
        PancreasPipeline(), origin=COMMENT, help="from scans to batches and scores"
    )
