"""`python -m bench [--quick] [--json FILE]`: measures everything and prints one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import torch

from bench import memory, rounds, volumes, weights
from bench.table import Section, render

Measure = Callable[[], Section]

FULL: dict[str, Measure] = {
    "rounds": lambda: rounds.measure(cuts=(16, 64, 256), cases=8000, repetitions=15),
    "steps": lambda: weights.measure(clients=(3, 16, 64), repetitions=15),
    "step memory": lambda: memory.of_steps(clients=(3, 16, 64)),
    "volumes": lambda: volumes.measure(steps=3, repetitions=7),
    "round memory": lambda: memory.of_rounds(K=64),
}
QUICK: dict[str, Measure] = {
    "rounds": lambda: rounds.measure(cuts=(16, 64), cases=2000, repetitions=3),
    "steps": lambda: weights.measure(clients=(3,), repetitions=2),
    "step memory": lambda: memory.of_steps(clients=(3,)),
    "volumes": lambda: volumes.measure(steps=1, repetitions=1),
    "round memory": lambda: memory.of_rounds(K=8),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything; a smoke test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--only", choices=FULL, help="one section alone")
    chosen = parser.parse_args()
    # Before anything forks: worker processes must not inherit a pool of threads.
    torch.set_num_threads(1)
    measures = QUICK if chosen.quick else FULL
    sections: list[Section] = []
    load = Load()
    try:
        for name in [chosen.only] if chosen.only else measures:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            sections.append(measures[name]())
    finally:
        facts = environment(chosen.quick) | load.facts()
        print(render(sections))
        print("\n" + "\n".join(f"{key}: {value}" for key, value in facts.items()))
        if chosen.json:
            content = {"environment": facts, "sections": [plain(section) for section in sections]}
            chosen.json.write_text(json.dumps(content, indent=1) + "\n")


class Load:
    """How busy others kept the machine from the making of this object on."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._busy, self._own = busy_seconds(), own_seconds()

    def facts(self) -> dict[str, str]:
        seconds = time.perf_counter() - self._start
        others = (busy_seconds() - self._busy) - (own_seconds() - self._own)
        return {
            "took": f"{seconds:.0f} s",
            "other processes kept busy": f"{max(0.0, others) / seconds:.2f} cores",
        }


def busy_seconds() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0)


def own_seconds() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(each.ru_utime + each.ru_stime for each in used)


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
    return {"title": section.title, "rows": [row.plain() for row in section.rows]}


if __name__ == "__main__":
    main()
