"""COVID-19 lesions in chest CT, after the paper's Sec. 4.2, on public scans.

The paper's three hospitals are private. This task uses the COVID-19-20 challenge instead: 199
labelled scans of one public source, dealt to three clients in the paper's proportions. The clients
differ by chance only.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.settings import setting
from autofedavg.tasks.archives.public import PublicPipeline, PublicTask


class Covid(PublicTask):
    """COVID-19 lesions in the public challenge's scans, dealt to three artificial clients.

    Note:
        These are not the paper's hospitals (decision 10), and results are not comparable to its
        Table 2. For scans of several hospitals, use the task `datalist` with the same pipeline.
    """

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
