"""A data list larger than the memory it may take: the peak of a run, and what reading costs."""

from __future__ import annotations

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nibabel
import numpy as np
import psutil

from bench.table import Row, Section
from bench.timing import Sample

SITES = ("north", "south", "west")
Grid = tuple[int, int, int]
GRID: Grid = (320, 320, 256)  # 52 MB as int16
EVERY = 0.05  # seconds between two looks
STUDY = """
[base]
rounds = {rounds}
[base.task]
name = "datalist"
datalist = "list.csv"
image_channels = 1
[base.task.classes]
lesion = [1]
[base.task.pipeline]
spacing = "keep"
normalise = "window"
window = [-1000.0, 500.0]
roi = [64, 64, 32]
overlap = 0.0
channels = [8, 16, 32]
strides = [[2, 2, 2], [2, 2, 2]]
[base.training]
iterations = {iterations}
batch_size = 2
learning_rate = 1e-3
[[run]]
name = "fedavg"
method = {{ name = "fedavg" }}
"""


def measure(
    gigabytes: float,
    hold: float,
    rounds: int,
    grid: Grid = GRID,
    iterations: int = 20,
    every: float = EVERY,
) -> Section:
    """The section: one list, prepared and trained on with little memory, then with plenty."""
    home = Path(tempfile.mkdtemp(prefix="autofedavg-bench-"))
    try:
        size = _generate(home, gigabytes, grid)
        (home / "study.toml").write_text(STUDY.format(rounds=rounds, iterations=iterations))
        first, _ = _run(home, hold, "first", every)
        again, from_disk = _run(home, hold, "again", every)
        _, in_memory = _run(home, max(1.0, 4 * gigabytes), "held", every)
    finally:
        shutil.rmtree(home)
    goal = 1500.0 if gigabytes >= 3 else None
    named = f"task.hold = {hold} GiB"
    rows = [
        Row(f"preparing and training, {named}", Sample((first,)), "MB", goal),
        Row(f"training, {named}", Sample((again,)), "MB", goal),
        Row("local training from disk over from memory", Sample((from_disk / in_memory,))),
    ]
    return Section(f"5. A run over a data list of {size / 1e9:.1f} GB: peak memory", rows)


def _generate(home: Path, gigabytes: float, grid: Grid) -> int:
    """Volumes of noise with a bright box; returns their bytes."""
    draw = np.random.default_rng(0)
    count = max(9, round(gigabytes * 1e9 / (2 * np.prod(grid))))
    total = 0
    with (home / "list.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("site", "case", "image", "label", "split"))
        for number in range(count):
            image = draw.integers(-1000, 500, grid, dtype=np.int16)
            label = np.zeros(grid, np.uint8)
            start = [int(draw.integers(0, n - 60)) for n in grid]
            label[tuple(slice(s, s + 60) for s in start)] = 1
            image[label > 0] += 800
            affine = np.diag([0.8, 0.8, 1.5, 1.0])
            for kind, values in (("image", image), ("label", label)):
                path = home / f"{number}-{kind}.nii"
                nibabel.save(nibabel.Nifti1Image(values, affine), path)
                total += path.stat().st_size
            place = number // len(SITES)
            split = {0: "validation", 1: "test"}.get(place, "train")
            table.writerow(
                (SITES[number % len(SITES)], number, f"{number}-image.nii", f"{number}-label.nii",
                 split)
            )  # fmt: skip
    return total


def _run(home: Path, hold: float, name: str, every: float) -> tuple[float, float]:
    """(MB at the peak of all processes together, median seconds of local training)."""
    arguments = ["autofedavg", "run", "study.toml", "--out", name, "--set", f"task.hold={hold}"]
    entry = f"import sys; sys.argv = {arguments!r}; from autofedavg.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", entry],
        cwd=home,
        env={**os.environ, "AUTOFEDAVG_CACHE": str(home / "cache")},
        stdout=subprocess.DEVNULL,
    )
    most = 0
    while process.poll() is None:
        most = max(most, _together(process.pid))
        time.sleep(every)
    if process.returncode:
        raise RuntimeError(f"the run ended with code {process.returncode}")
    lines = (home / name / "study" / "fedavg" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["calls"]["local_train"]["seconds"] for line in lines]
    return most / 1e6, statistics.median(seconds)


def _together(pid: int) -> int:
    """Bytes of a process and its workers; pages they share are counted once."""
    total = 0
    try:
        root = psutil.Process(pid)
        for each in [root, *root.children(recursive=True)]:
            total += each.memory_full_info().pss
    except psutil.NoSuchProcess:
        return total
    return total
