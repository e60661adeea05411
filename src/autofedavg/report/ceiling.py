"""What other weights could have gained, as a table and in sentences."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from autofedavg.core.gains import Gain
from autofedavg.report.repeats import Results
from autofedavg.report.tables import Cell, Table, table_of

FITTED = {"network": "network-wise", "layer": "layer-wise", "scaled": "scaled"}
OTHERS = {"even": "even weights", "run": "this run", "ensemble": "ensemble"}
LOCAL = "local-"
LITTLE = 0.005  # half a point: less is not worth the traffic of learning weights
POINTS = 100


class Measured(NamedTuple):
    """One kept round of a row: FedAvg's mean score and every model's gain over it."""

    label: str
    t: int
    split: str
    score: float
    gains: Mapping[str, Gain]

    @property
    def best(self) -> tuple[str, Gain]:
        """The fitted weights that gain most."""
        return max(((k, self.gains[k]) for k in FITTED), key=lambda found: found[1].mean)

    @property
    def best_site(self) -> Gain | None:
        """The gain of the best of the sites' own models."""
        own = [gain for name, gain in self.gains.items() if name.startswith(LOCAL)]
        return max(own, key=lambda gain: gain.mean, default=None)


def measured(label: str, contents: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """The rounds of ceiling.json of a row's repeats, by round: means over repeats.

    A margin is the mean of the repeats' own: they are tested on the same cases, so it does not
    shrink with their number.
    """
    found: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for content in contents:
        for line in content["rounds"]:
            found.setdefault((int(line["t"]), str(content["split"])), []).append(line["rows"])
    return [
        Measured(
            label,
            t,
            split,
            statistics.fmean(rows["fedavg"]["score"] for rows in repeats),
            {name: _mean(name, repeats) for name in repeats[0] if _everywhere(name, repeats)},
        )
        for (t, split), repeats in sorted(found.items())
    ]


def _everywhere(name: str, repeats: Sequence[Mapping[str, Any]]) -> bool:
    return all(name in rows for rows in repeats)


def _mean(name: str, repeats: Sequence[Mapping[str, Any]]) -> Gain:
    return Gain(
        statistics.fmean(rows[name]["gain"] for rows in repeats),
        statistics.fmean(rows[name]["margin"] for rows in repeats),
    )


def ceilings(results: Results) -> list[Measured]:
    """All that was measured of a report's rows."""
    return [
        line
        for row in results.rows
        for line in measured(row.label, [r.ceiling for r in row.repeats if r.ceiling])
    ]


def ceiling_table(results: Results) -> Table | None:
    """FedAvg's score and the gains over it, a line for every kept round of a row."""
    return table_of_ceilings(ceilings(results))


def table_of_ceilings(lines: Sequence[Measured]) -> Table | None:
    """The table of these rounds, with a sentence for the last of every row."""
    shown = [kind for kind in OTHERS if any(kind in line.gains for line in lines)]
    sites = any(line.best_site for line in lines)
    heads = ["FedAvg", *FITTED.values(), *(OTHERS[kind] for kind in shown)]
    rows = []
    for line in lines:
        cells = [Cell(POINTS * line.score)]
        cells += [_cell(line.gains.get(kind)) for kind in (*FITTED, *shown)]
        cells += [_cell(line.best_site)] if sites else []
        rows.append((f"{line.label} - round {line.t}", tuple(cells)))
    notes = (
        *(sentence(line) for line in {line.label: line for line in lines}.values()),
        "FedAvg: mean over sites of the score of the sites' models of that round under FedAvg's "
        "weights, in percent. Other columns: points gained over it, ± the 95 % interval over "
        "paired cases.",
        "An oracle: network-wise, layer-wise and scaled weights were fitted to one half of every "
        f"site's {' and '.join(sorted({line.split for line in lines}))} cases and scored on the "
        "other, both ways round. Nothing was chosen by it, and no method may do this.",
    )
    heads += ["best site"] if sites else []
    return table_of("ceiling", "What other weights could gain", heads, rows, notes)


def _cell(gain: Gain | None) -> Cell:
    if gain is None:
        return Cell()
    return Cell(POINTS * gain.mean, POINTS * gain.margin, show_spread=True)


def sentence(line: Measured) -> str:
    """Whether better weights are worth anything here, by the interval of the best ones."""
    kind, gain = line.best
    if gain.high <= LITTLE:
        verdict = "not worth their traffic"
    elif gain.low > LITTLE:
        verdict = f"{FITTED[kind]} weights are worth learning"
    elif gain.low > 0:
        verdict = "a real gain, and perhaps a small one"
    else:
        verdict = "these cases are too few to tell"
    points = f"{POINTS * gain.mean:.1f} ± {POINTS * gain.margin:.1f} points"
    return f"{line.label}, round {line.t}: better weights could gain {points} here: {verdict}."
