"""`python -m bench [--quick] [--only SECTION ...] [--json FILE]`: measures, prints one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch

from bench import (
    gpu,
    gpu_methods,
    gpu_sites,
    gpu_volumes,
    large,
    memory,
    own,
    reports,
    rounds,
    scale,
    volumes,
    weights,
)
from bench.table import Section, render
from bench.timing import keep_heap

Measure = Callable[[], Section]


def engine(name: str) -> Any:
    """Imported when asked for: the other sections run where the engine is not installed."""
    return import_module(f"bench.{name}")


FULL: dict[str, Measure] = {
    "rounds": lambda: rounds.measure(cuts=(16, 64, 256), cases=8000, sittings=2, repetitions=4),
    "steps": lambda: weights.measure(clients=(3, 16, 64), repetitions=9),
    "step memory": lambda: memory.of_steps(clients=(3, 16, 64)),
    "volumes": lambda: volumes.measure(steps=4, repetitions=11),
    "round memory": lambda: memory.of_rounds(K=64),
    "large data": lambda: large.measure(gigabytes=3.0, hold=0.25, rounds=3),
    "report": lambda: reports.measure(runs=50, rounds=300, repetitions=3),
    "flare": lambda: engine("flare").measure(rounds=5, steps=40),
    "flower": lambda: engine("flower").measure(steps=8),
    "gpu": lambda: gpu.measure(epochs=4, S=400, repetitions=5),
    "gpu volumes": lambda: gpu_volumes.measure(steps=100, repetitions=5),
    "gpu methods": lambda: gpu_methods.measure(repetitions=9),
    "gpu sites": lambda: gpu_sites.measure(steps=50, S=20, repetitions=7),
    "federate": lambda: own.measure(cuts=(16, 64, 256), cases=8000, sittings=2, repetitions=4),
    "many clients": lambda: scale.measure(clients=(64, 256, 1024), rounds=3),
}
QUICK: dict[str, Measure] = {
    "rounds": lambda: rounds.measure(cuts=(4, 8), cases=128, sittings=1, repetitions=1),
    "steps": lambda: weights.measure(clients=(3,), repetitions=1),
    "step memory": lambda: memory.of_steps(clients=(3,)),
    "volumes": lambda: volumes.measure(steps=1, repetitions=1, crop=(32, 32, 16)),
    "round memory": lambda: memory.of_rounds(K=2),
    "large data": lambda: large.measure(
        gigabytes=0.0, hold=0.001, rounds=1, grid=(64, 64, 64), iterations=1, every=1.0
    ),
    "report": lambda: reports.measure(runs=10, rounds=4, repetitions=1),
    "flare": lambda: engine("flare").measure(rounds=2, steps=2),
    "flower": lambda: engine("flower").measure(steps=1),
    "gpu": lambda: gpu.measure(epochs=1, S=5, repetitions=1),
    "gpu volumes": lambda: gpu_volumes.measure(steps=5, repetitions=1),
    "gpu methods": lambda: gpu_methods.measure(repetitions=1),
    "gpu sites": lambda: gpu_sites.measure(steps=6, S=5, repetitions=1),
    "federate": lambda: own.measure(cuts=(4, 8), cases=128, sittings=1, repetitions=1),
    "many clients": lambda: scale.measure(clients=(2, 4), rounds=1),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything; a smoke test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--only", choices=FULL, nargs="+", help="some sections alone")
    chosen = parser.parse_args()
    # Before anything forks: worker processes must not inherit a pool of threads.
    torch.set_num_threads(1)
    keep_heap()
    measures = QUICK if chosen.quick else FULL
    sections: list[Section] = []
    failed: list[str] = []
    started = time.perf_counter()
    try:
        for name in chosen.only or measures:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            try:
                sections.append(measures[name]())
            except Exception as error:  # named, with its traceback, and the others still run
                traceback.print_exc()
                failed.append(name)
                why = f"failed: {type(error).__name__}: {error}"
                sections.append(Section(f"Section {name!r}", [], remark=why))
    finally:
        facts = environment(chosen.quick)
        facts["took"] = f"{time.perf_counter() - started:.0f} s"
        if failed:
            facts["failed"] = ", ".join(failed)
        print(render(sections))
        print("\n" + "\n".join(f"{key}: {value}" for key, value in facts.items()))
        if chosen.json:
            content = {"environment": facts, "sections": [plain(section) for section in sections]}
            chosen.json.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if failed else 0


def environment(quick: bool) -> dict[str, str]:
    return {
        "mode": "quick: the verdicts mean little" if quick else "full",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{cpu_name()}, {os.cpu_count()} cores, {memory_gb():.0f} GB",
        "software": f"Python {platform.python_version()}, torch {torch.__version__}",
    }


def memory_gb() -> float:
    return psutil.virtual_memory().total / 2**30


def cpu_name() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def plain(section: Section) -> dict[str, object]:
    return {
        "title": section.title,
        "rows": [row.plain() for row in section.rows],
        "cores kept busy by others": section.others,
    }


if __name__ == "__main__":
    sys.exit(main())
