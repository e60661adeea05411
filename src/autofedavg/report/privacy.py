"""What rows have spent of the sites' patients' privacy."""

from __future__ import annotations

from autofedavg.report.repeats import Results
from autofedavg.report.tables import Cell, Table, table_of


def privacy_table(results: Results) -> Table | None:
    """Epsilon by row and site after the last round: the largest of a row's runs."""
    rows, deltas = [], []
    for row in results.rows:
        found: dict[str, float] = {}
        for repeat in row.repeats:
            spent = repeat.rounds[-1].get("epsilon", {}) if repeat.rounds else {}
            found |= {site: max(e, found.get(site, 0.0)) for site, e in spent.items()}
        if found:
            rows.append((row.label, tuple(Cell(found.get(site)) for site in results.sites)))
            delta = row.repeats[0].config.get("privacy", {}).get("delta")
            deltas += [f"{row.label}: delta = {delta:g}."] if delta else []
    notes = (
        "Epsilon of the patient who is worst off, by the noise on training and on steps on beta; "
        "seeds are runs on the same patients, and each alone is counted.",
        "Validation and test scores left the sites without noise: epsilon does not cover them.",
        *deltas,
    )
    return table_of("privacy", "Differential privacy", [*results.sites], rows, notes)
