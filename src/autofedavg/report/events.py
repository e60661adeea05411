"""Who was lost, dropped, asked or sent again, and who came back: the events of the rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from autofedavg.report.read import Results, Row
from autofedavg.report.tables import Cell, Table

# Kind of event -> its column.
KINDS = {
    "lost": "lost",
    "dropped": "dropped",
    "retried": "asked again",
    "resent": "sent again",
    "returned": "returned",
}
# Only where there are any: its column, and what it means.
RARE = {
    "clipped": (
        "clipped",
        "Clipped: its step on beta was far longer than the others', and did not count.",
    ),
    "outlying": ("far off", "Far off: its model had moved much further than the others'."),
}


class Happened(NamedTuple):
    """An event with its round."""

    t: int
    event: dict[str, Any]


def events_of(row: Row) -> Iterator[Happened]:
    """The events of all repeats of a row; folders of earlier versions have none."""
    for repeat in row.repeats:
        for line in repeat.rounds:
            yield from (Happened(int(line["t"]), event) for event in line.get("events") or [])


def events_table(results: Results) -> Table | None:
    """How often what happened to which site, and in which rounds."""
    seen = {str(event["what"]) for row in results.rows for _, event in events_of(row)}
    kinds = KINDS | {kind: head for kind, (head, _) in RARE.items() if kind in seen}
    rows = []
    for row in results.rows:
        found: dict[str, Counter[str]] = {}
        rounds: dict[str, set[int]] = {}
        for t, event in events_of(row):
            found.setdefault(str(event["site"]), Counter())[str(event["what"])] += 1
            rounds.setdefault(str(event["site"]), set()).add(t)
        for site in sorted(found):
            counts = [Cell(float(found[site][kind])) for kind in kinds]
            rows.append((f"{row.label} - {site}", (*counts, Cell(float(len(rounds[site]))))))
    if not rows:
        return None
    notes = (
        "Events of all repeats. Lost: gave no answer, and was left out of that call. Dropped: its "
        "answer could not be used. Asked again: within a call, after no answer. Sent again: models "
        "that it had lost. Returned: answered after it was lost or dropped. Rounds: those in which "
        "any of it happened. Reasons are in rounds.jsonl.",
        *(meaning for kind, (_, meaning) in RARE.items() if kind in seen),
    )
    heads = (*kinds.values(), "rounds")
    return Table("events", "Lost and returning sites", heads, tuple(rows), notes, decimals=0)
