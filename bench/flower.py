"""One exchange over beta through a real SuperLink and three real SuperNodes on loopback."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from autofedavg.engines.flower import Loopback
from autofedavg.engines.remote.job import Job
from autofedavg.experiment.config import parse_study
from bench.table import Row, Section
from bench.timing import Load, Sample

TASK = {
    "name": "synthetic",
    "scale": 0.02,
    "extent": [24.0, 24.0, 30.0],
    "pipeline": {"roi": [16, 16, 8], "channels": [4, 8]},
}
TRAINING = {"iterations": 2, "batch_size": 2, "learning_rate": 3e-3}
WAYS = {
    True: "our executor, which stays, and empty messages that keep the SuperNode awake",
    False: "Flower's SuperExec, a process for every message, and our resident worker",
}


def measure(steps: int, stock_steps: int) -> Section:
    """Seconds of an update_beta exchange.

    Args:
        steps: with the executor that stays.
        stock_steps: with Flower's own.
    """
    load = Load()
    rows = [
        Row(f"update_beta, 3 sites: {way}", _exchanges(resident, count), "s")
        for (resident, way), count in zip(WAYS.items(), (steps, stock_steps), strict=True)
    ]
    return Section(
        "10. Flower on loopback, TLS and node keys, seconds an exchange",
        rows,
        load.of_others(),
        "before: 12 to 16 s with three sites, PyTorch started for every message",
    )


def _exchanges(resident: bool, steps: int) -> Sample:
    with tempfile.TemporaryDirectory(prefix="bench-flower-") as folder:
        home = Path(folder)
        job = _job(steps)
        with Loopback(job.sites, {}, home / "runs", home / "scratch", resident) as flower:
            flower.run(job, lambda: None)
        said = (job.folder(home / "runs") / "log.txt").read_text()
    found = re.findall(r"update_beta of 3 sites: ([\d.]+) s", said)
    return Sample(tuple(float(seconds) for seconds in found))


def _job(steps: int) -> Job:
    study = parse_study(
        {
            "study": {"name": "bench"},
            "base": {"rounds": 1, "task": TASK, "training": TRAINING},
            "run": [{"name": "n-dirichlet", "method": {"name": "auto-fedavg", "S": steps}}],
        },
        "bench",
    )
    config = study.runs[0].resolved()
    return Job.of("bench", config, 0, config.task.site_names(), threads=1)
