"""How long a report takes: many runs, as made-up folders, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.folders import METHODS, write_study

from bench.table import Row, Section
from bench.timing import Sample


def measure(runs: int, rounds: int, repetitions: int) -> Section:
    """Seconds of `autofedavg report RUNS --out DIR` and megabytes of its page."""
    seeds = 5
    dirichlet = METHODS["n-dirichlet"]
    learned = {f"t{n}": {**dirichlet, "t0": n} for n in range(1, runs // seeds)}
    with tempfile.TemporaryDirectory() as scratch:
        home, out = Path(scratch) / "study", Path(scratch) / "report"
        methods = {"fedavg": METHODS["fedavg"], **learned}
        write_study(home, methods, seeds=range(seeds), rounds=rounds, cases=40)
        command = [sys.executable, "-m", "autofedavg", "report", str(home), "--out", str(out)]
        times = []
        for _ in range(repetitions):
            begun = time.perf_counter()
            subprocess.run([*command, "--no-examples"], check=True, capture_output=True)
            times.append(time.perf_counter() - begun)
        size = (out / "index.html").stat().st_size / 1e6
    rows = [
        Row(
            f"{runs} runs of {rounds} rounds, 120 test cases each", Sample(tuple(times)), "s", 60.0
        ),
        Row("the page", Sample((size,)), "MB"),
    ]
    return Section("6. A report with its page, all tables and all figures", rows)
