"""The pancreas in abdominal CT from three public data sets: the paper's Sec. 4.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from autofedavg.core.settings import setting
from autofedavg.tasks.archives.public import PublicPipeline, PublicTask
from autofedavg.tasks.archives.sources import DataSource
from autofedavg.tasks.imaging.pipeline import HELP, LESION_MODEL
from autofedavg.tasks.imaging.preparation import BACKGROUND

PANCREAS = "pancreas"
COMMENT = "derived from the paper's withdrawn source comment"

SOURCES = {
    "MSD": DataSource(
        title="Medical Segmentation Decathlon, Task07_Pancreas",
        get="http://medicaldecathlon.com, Task07_Pancreas.tar, 11.4 GiB, no account needed",
        licence="CC BY-SA 4.0",
        cite=(
            "Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 13:4128, "
            "2022",
            "Simpson et al., A large annotated medical image dataset for the development and "
            "evaluation of segmentation algorithms, arXiv:1902.09063, 2019",
        ),
        folder="MSD",
        case="pancreas_{}",
        image="imagesTr/pancreas_{}.nii.gz",
        label="labelsTr/pancreas_{}.nii.gz",
        number=r"\d{3}",
        classes={PANCREAS: (1, 2)},  # 2 is the tumour in it
    ),
    "TCIA": DataSource(
        title="TCIA Pancreas-CT",
        get="https://www.cancerimagingarchive.net/collection/pancreas-ct/, DICOM by the NBIA Data "
        "Retriever, 9.95 GB, and the labels' zip; no account needed",
        licence="CC BY 3.0 and TCIA's data usage policy",
        cite=(
            "Roth et al., Data From Pancreas-CT [Data set], TCIA, 2016, "
            "doi 10.7937/K9/TCIA.2016.tNB1kqBU",
            "Roth et al., DeepOrgan: Multi-level Deep Convolutional Networks for Automated "
            "Pancreas Segmentation, MICCAI 2015",
            "Clark et al., The Cancer Imaging Archive, J Digit Imaging 26:1045-1057, 2013",
        ),
        folder="TCIA",
        case="PANCREAS_{}",
        image="PANCREAS_{}",
        label="label{}.nii.gz",
        number=r"\d{4}",
        classes={PANCREAS: (1,)},
        series=True,
        by_rows=True,
    ),
    "BTCV": DataSource(
        title="MICCAI 2015 Multi-Atlas Labeling Beyond the Cranial Vault, abdomen, training set",
        get="https://www.synapse.org/#!Synapse:syn3193805, RawData.zip (a Synapse account is "
        "needed)",
        licence="read the terms on Synapse; second-hand sources contradict each other",
        cite=(
            "Landman et al., MICCAI Multi-Atlas Labeling Beyond the Cranial Vault - Workshop and "
            "Challenge, 2015",
        ),
        folder="BTCV",
        case="img{}",
        image="img{}.nii.gz",
        label="label{}.nii.gz",
        number=r"\d{4}",
        classes={PANCREAS: (11,), BACKGROUND: (*range(1, 11), 12, 13)},
    ),
}


class PancreasPipeline(PublicPipeline):
    """The paper's settings for the pancreas; where it is silent, those of its COVID-19 study."""

    spacing: tuple[float, ...] | Literal["keep"] = setting(
        (1.0, 1.0, 1.0), origin=COMMENT, help=HELP["spacing"]
    )
    window: tuple[float, float] = setting(
        (-87.0, 199.0),
        origin="derived from the same group's DiNTS settings for the Decathlon's pancreas",
        help=HELP["window"],
    )
    crop: bool = setting(True, origin=LESION_MODEL, help=HELP["crop"])
    roi: tuple[int, ...] = setting((192, 192, 192), origin=COMMENT, help=HELP["roi"])
    overlap: float = setting(
        0.75, origin=f"{COMMENT} (stride 48)", help=HELP["overlap"], ge=0, lt=1
    )


class Pancreas(PublicTask):
    """The pancreas in MSD, TCIA and BTCV; tumours in it count as pancreas, other organs do not.

    Note:
        Two of TCIA's 82 scans were withdrawn in 2020 as copies of a third. They are never used;
        the third is in the training split.
    """

    sources: ClassVar[Mapping[str, DataSource]] = SOURCES
    heading: ClassVar[str] = "The pancreas in abdominal CT: the paper's three public data sets."
    published: ClassVar[str] = (
        "pancreas in MSD Task07, TCIA Pancreas-CT and BTCV, split in the paper's sizes, the cases "
        "drawn by us"
    )
    structure: ClassVar[str] = PANCREAS
    typical: ClassVar[int] = 400 * 330 * 250 * 3 + 512 * 512 * 100

    name: Literal["pancreas"] = "pancreas"
    pipeline: PancreasPipeline = setting(
        PancreasPipeline(), origin=COMMENT, help="from scans to batches and scores"
    )
