"""Every tuned method where all sites are good, and where the largest is bad."""

from __future__ import annotations

import statistics

from autofedavg.report.differences import by_seed
from autofedavg.report.repeats import Results
from autofedavg.report.tables import Cell, Table


def risk_table(good: Results, bad: Results) -> Table:
    """Points from FedAvg in both, and behind the best row where they are most; safest first."""
    gains = {}
    for row in good.rows:
        pairs = [by_seed(study.row(row.name), study.row("fedavg")) for study in (good, bad)]
        if all(pairs):
            gains[row.label] = [statistics.fmean(values) for values in pairs]
    best = [max(column) for column in zip(*gains.values(), strict=True)]
    behind = {
        label: max(top - mine for top, mine in zip(best, values, strict=True))
        for label, values in gains.items()
    }
    rows = tuple(
        (
            label,
            (*(Cell(v, text=f"{v:+.2f}") for v in gains[label]), Cell(behind[label])),
        )
        for label in sorted(behind, key=lambda label: behind[label])
    )
    counts = [len(study.row("fedavg").summaries) for study in (good, bad)]
    notes = (
        "Points of global test avg above FedAvg with the same seed, each row tuned in each study: "
        f"mean of {counts[0]} seeds where all sites are good, and of {counts[1]} where the largest "
        "has mirrored training labels. Last column: points behind the best row of a study, where "
        "they are most. The best of so many rows flatters, so it is an upper bound.",
    )
    heads = ("all good", "largest bad", "furthest behind")
    return Table("risk", "Who does not know whether the largest site is bad", heads, rows, notes)
