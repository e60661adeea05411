"""A step of the LGG study's network on a GPU: replayed, over launched kernel by kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.segmentation import loss, network
from bench.table import Row, Section
from bench.timing import Run, Sample, interleave

HOW = Pipeline(
    spacing="keep",
    roi=(128, 128, 32),
    strides=((2, 2, 1), (2, 2, 2), (2, 2, 2), (2, 2, 2)),
)
BATCH = 4
TITLE = "10. A step of a 3D U-Net on a GPU (crop 128x128x32, batch 4, bf16)"


def measure(steps: int, repetitions: int) -> Section:
    """The section; without rows where there is no GPU."""
    if not torch.cuda.is_available():
        return Section(TITLE, [], remark="skipped: no CUDA device here")
    torch.cuda.reset_peak_memory_stats()
    image = torch.randn(BATCH, 1, *HOW.roi, device="cuda")
    batch = (image, (image > 2).float())
    launched, replayed = "launched", "replayed"
    contestants = {
        launched: _round(batch, steps, steady=False),
        replayed: _round(batch, steps, steady=True),
    }
    times = interleave(contestants, repetitions)
    each = {name: [1e3 * seconds / steps for seconds in times.all(name)] for name in contestants}
    rows = [
        Row("launched kernel by kernel", Sample(tuple(each[launched])), "ms"),
        Row("replayed", Sample(tuple(each[replayed])), "ms"),
        Row("replayed over launched", times.ratio(replayed, launched)),
        Row("memory of both", Sample((torch.cuda.max_memory_allocated() / 1e9,)), "GB", limit=16.0),
    ]
    return Section(TITLE, rows, times.others)


def _round(batch: tuple[Tensor, Tensor], steps: int, *, steady: bool) -> Run:
    training = Training(iterations=steps, batch_size=BATCH, precision="bf16")
    bench = LocalTrainer(network(HOW), loss(HOW), training, torch.device("cuda"), steady)
    return lambda: bench.train([batch] * steps, 1e-4).cpu()
