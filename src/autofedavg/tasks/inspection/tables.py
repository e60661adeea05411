"""An inspection as tables for other programs: one line per case, one line per site."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autofedavg.tasks.imaging.prepared import SPLITS
from autofedavg.tasks.inspection.comparison import HIGH, LOW, CaseLine, MedianRange, SiteFacts


def case_values(line: CaseLine, classes: Sequence[str]) -> dict[str, Any]:
    """A case as one line of a table."""
    facts = line.facts
    values: dict[str, Any] = {
        "site": line.site,
        "case": line.case,
        "patient": line.patient,
        "split": line.split,
    }
    for axis, size in enumerate(facts.grid, 1):
        values[f"grid_{axis}"] = size
    for axis in range(len(facts.grid)):
        values[f"spacing_{axis + 1}"] = None if facts.spacing is None else facts.spacing[axis]
    values["zeros"] = facts.zeros
    for channel, (mean, deviation) in enumerate(facts.moments):
        mark = f"_channel_{channel + 1}" if facts.channels > 1 else ""
        seen = line.intensities(channel)
        values[f"intensity_{LOW:g}{mark}"] = seen.low
        values[f"intensity_50{mark}"] = seen.median
        values[f"intensity_{HIGH:g}{mark}"] = seen.high
        values[f"bright_mean{mark}"], values[f"bright_deviation{mark}"] = mean, deviation
    for name in classes:
        values[f"voxels_{name}"] = line.voxels[name]
    values["label_voxels"], values["label_ml"] = line.label_voxels, line.label_ml
    return values


def site_values(site: str, facts: SiteFacts) -> dict[str, Any]:
    """A site as one line of a table."""
    values: dict[str, Any] = {"site": site, "cases": facts.cases, "patients": facts.patients}
    values |= {split: facts.splits.get(split, 0) for split in SPLITS}
    spreads: dict[str, MedianRange | None] = {}
    for axis, sizes in enumerate(facts.grid, 1):
        spreads[f"grid_{axis}"] = sizes
    for axis in range(len(facts.grid)):
        spreads[f"spacing_{axis + 1}"] = None if facts.spacing is None else facts.spacing[axis]
    spreads |= {"label_voxels": facts.label_voxels, "label_ml": facts.label_ml}
    for name, known in spreads.items():
        for part in MedianRange._fields:
            values[f"{name}_{part}"] = None if known is None else getattr(known, part)
    for channel, seen in enumerate(facts.intensities):
        mark = f"_channel_{channel + 1}" if len(facts.intensities) > 1 else ""
        values |= {f"intensity_{LOW:g}{mark}": seen.low, f"intensity_50{mark}": seen.median}
        values[f"intensity_{HIGH:g}{mark}"] = seen.high
    return values | {f"share_{name}": share for name, share in facts.shares.items()}


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes lines with the same keys as CSV."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [*rows[0]], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
