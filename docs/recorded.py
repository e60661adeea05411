"""The table of what the runs of every archive recorded about where they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autofedavg.experiment.folder import read_json, run_paths
from autofedavg.report.tables import Cell, Table

NONE, CHANGED = "none", "-dirty"
MESSAGES = (
    "From the runs' environment.json; how many runs, where a cell names several. A run in a "
    f"checkout with uncommitted changes records its commit with {CHANGED}. One in a copy of the "
    f"files without git's history records {NONE}.",
)


def recorded_table(archives: Sequence[Path]) -> Table:
    """A line for every archive: its runs, and the commit, PyTorch and device that they recorded."""
    rows = []
    for archive in sorted(archives, key=lambda path: path.stem):
        about = [read_json(run / "environment.json") for run in run_paths([archive])]
        cells = (counted(about, short), counted(about, torch), counted(about, device))
        runs = Cell(len(about), text=str(len(about)))
        rows.append((archive.stem, (runs, *(Cell(text=text) for text in cells))))
    heads = ("runs", "commit", "torch", "device")
    return Table("recorded", "What the runs recorded", heads, tuple(rows), MESSAGES)


def counted(about: list[dict[str, Any]], of: Callable[[dict[str, Any]], str]) -> str:
    """What the runs say, the most frequent first, with counts where they differ."""
    counts = Counter(map(of, about)).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{said} ({count})" for said, count in counts)


def short(about: dict[str, Any]) -> str:
    """The commit as people write it."""
    name, changed, _ = (about["commit"] or NONE).partition(CHANGED)
    return name[:7] + changed


def torch(about: dict[str, Any]) -> str:
    """The release of PyTorch, without the build that it came in."""
    return str(about["versions"]["torch"].partition("+")[0])


def device(about: dict[str, Any]) -> str:
    """The GPU's name, or the CPU."""
    return "CPU" if about["device"] == "cpu" else str(about["device"])
