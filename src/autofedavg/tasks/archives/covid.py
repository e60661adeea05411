"""COVID-19 lesions in chest CT, after the paper's Sec. 4.2, on public scans.

The paper's three hospitals are private. This task uses the COVID-19-20 challenge instead: 199
labelled scans of one public source, dealt to three clients in the paper's proportions. The clients
differ by chance only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from autofedavg.core.settings import setting
from autofedavg.tasks.archives.public import PublicPipeline, PublicTask
from autofedavg.tasks.archives.sources import DataSource

CHALLENGE = DataSource(
    title="COVID-19-20 Lung CT Lesion Segmentation Challenge, training set",
    get="https://covid-segmentation.grand-challenge.org/ (an account is needed)",
    licence="images CC BY 4.0 (TCIA, CT Images in COVID-19); read the archive's license.txt",
    cite=(
        "Roth et al., Rapid artificial intelligence solutions in a pandemic - The COVID-19-20 "
        "Lung CT Lesion Segmentation Challenge, Medical Image Analysis 82:102605, 2022",
        "An et al., CT Images in COVID-19 [Data set], TCIA, 2020, doi 10.7937/tcia.2020.gqry-nc81",
    ),
    folder="",
    case="volume-covid19-A-{}",
    image="volume-covid19-A-{}_ct.nii.gz",
    label="volume-covid19-A-{}_seg.nii.gz",
    number=r"\d{4}(?:_\d)?",
    classes={"lesion": (1,)},
    # Sources disagree on these names; no other case has the same four digits.
    aliases={
        "volume-covid19-A-0196": "volume-covid19-A-0196_0",
        "volume-covid19-A-0383": "volume-covid19-A-0383_1",
    },
)


class Covid(PublicTask):
    """COVID-19 lesions in the public challenge's scans, dealt to three artificial clients.

    Note:
        These are not the paper's hospitals (decision 10), and results are not comparable to its
        Table 2. For scans of several hospitals, use the task `datalist` with the same pipeline.
    """

    sources: ClassVar[Mapping[str, DataSource]] = dict.fromkeys(("I", "II", "III"), CHALLENGE)
    heading: ClassVar[str] = (
        "COVID-19 lesions in chest CT. The paper's hospitals are private; this is one public\n"
        "source, dealt to three clients in the paper's proportions: they are NOT the paper's\n"
        "hospitals and differ by chance only. For scans of several hospitals: task `datalist`."
    )
    published: ClassVar[str] = (
        "COVID-19-20 challenge, public training cases of one source dealt to three artificial "
        "clients; not the paper's hospitals"
    )
    structure: ClassVar[str] = "lesion"
    typical: ClassVar[int] = 440 * 440 * 65 * 3 + 512 * 512 * 70

    name: Literal["covid"] = "covid"
    pipeline: PublicPipeline = setting(
        PublicPipeline(), origin="paper Sec. 4.2.1", help="from scans to batches and scores"
    )
