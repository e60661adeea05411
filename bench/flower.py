"""One exchange over beta through a real SuperLink and three real SuperNodes on loopback."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from autofedavg.engines.flower import Loopback
from bench.jobs import tiny_job
from bench.table import Row, Section
from bench.timing import Load, Sample

TOGETHER = 5


def measure(steps: int) -> Section:
    """Seconds of a step on beta, over this many messages; Flower starts a process for each."""
    load = Load()
    rows = [
        Row("one step a message", _steps(steps), "s"),
        Row(f"{TOGETHER} steps a message", _steps(steps, TOGETHER), "s"),
    ]
    return Section(
        "Flower on loopback, three sites, TLS and node keys: a step on beta",
        rows,
        load.of_others(),
        "each message starts a process per site, which imports PyTorch",
    )


def _steps(exchanges: int, together: int = 1) -> Sample:
    with tempfile.TemporaryDirectory(prefix="bench-flower-") as folder:
        home = Path(folder)
        job = tiny_job(1, exchanges * together, together)
        with Loopback(job.sites, {}, home / "runs", home / "scratch") as flower:
            flower.run(job, lambda: None)
        said = (job.folder(home / "runs") / "log.txt").read_text()
    found = re.findall(r"update_beta of 3 sites: ([\d.]+) s", said)
    return Sample(tuple(float(seconds) / together for seconds in found))
