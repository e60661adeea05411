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


def measure(steps: int, stock_steps: int) -> Section:
    """Seconds of a step on beta.

    Args:
        steps: exchanges with the executor that stays.
        stock_steps: exchanges with Flower's own.
    """
    load = Load()
    rows = [
        Row("our executor, which stays between messages", _steps(True, steps), "s"),
        Row(f"the same, {TOGETHER} steps a message", _steps(True, steps, TOGETHER), "s"),
        Row("Flower's: a process for every message", _steps(False, stock_steps), "s"),
    ]
    return Section(
        "Flower on loopback, three sites, TLS and node keys: a step on beta",
        rows,
        load.of_others(),
        "a process that starts PyTorch for every message: 12 to 16 s",
    )


def _steps(resident: bool, exchanges: int, together: int = 1) -> Sample:
    with tempfile.TemporaryDirectory(prefix="bench-flower-") as folder:
        home = Path(folder)
        job = tiny_job(1, exchanges * together, together)
        with Loopback(job.sites, {}, home / "runs", home / "scratch", resident) as flower:
            flower.run(job, lambda: None)
        said = (job.folder(home / "runs") / "log.txt").read_text()
    found = re.findall(r"update_beta of 3 sites: ([\d.]+) s", said)
    return Sample(tuple(float(seconds) / together for seconds in found))
