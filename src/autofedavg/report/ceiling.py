"""What other weights could have gained, as a table and in sentences."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from autofedavg.core.gains import Gain
from autofedavg.report.repeats import Results
from autofedavg.report.tables import Cell, Table, table_of

SCALED = "scaled"
FITTED = {"network": "network-wise", "layer": "layer-wise", SCALED: "scaled"}
ALONE = ("network", "layer")  # weights and nothing else; "scaled" has a factor, too
OTHERS = {"even": "even weights", "run": "this run", "ensemble": "ensemble"}
TEST = "test"
LOCAL = "local-"
LITTLE = 0.005  # half a point: less is not worth the traffic of learning weights
POINTS = 100


class Measured(NamedTuple):
    """One kept round of a row: FedAvg's mean score and every model's gain over it.

    Attributes:
        label: of the row.
        split: the cases, test or validation.
        runs: how many of the row's were measured, of how many.
    """

    label: str
    t: int
    split: str
    score: float
    gains: Mapping[str, Gain]
    runs: tuple[int, int] = (1, 1)

    @property
    def best_site(self) -> Gain | None:
        """The gain of the best of the sites' own models."""
        own = [gain for name, gain in self.gains.items() if name.startswith(LOCAL)]
        return max(own, key=lambda gain: gain.mean, default=None)


def measured(label: str, contents: Iterable[Mapping[str, Any]], of: int = 1) -> list[Measured]:
    """The rounds of ceiling.json of a row's repeats, by round and split: means over repeats.

    A margin is the mean of the repeats' own: they are tested on the same cases, so it does not
    shrink with their number. `of` is the number of the row's repeats, measured or not.
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
            (len(repeats), max(of, len(repeats))),
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
        for line in measured(
            row.label, [r.ceiling for r in row.repeats if r.ceiling], len(row.repeats)
        )
    ]


def told(lines: Sequence[Measured]) -> list[Measured]:
    """One line for every kept round of a row: that of test cases, where they were measured."""
    tested = {(line.label, line.t) for line in lines if line.split == TEST}
    return [line for line in lines if line.split == TEST or (line.label, line.t) not in tested]


def in_brief(results: Results) -> list[str]:
    """Sentences about the first and the last kept round of every row: most gains are early."""
    by_row: dict[str, list[str]] = {}
    for line in told(ceilings(results)):
        by_row.setdefault(line.label, []).append(sentence(line))
    return [said for mine in by_row.values() for said in dict.fromkeys((mine[0], mine[-1]))]


def ceiling_table(results: Results) -> Table | None:
    """FedAvg's score and the gains over it, a line for every kept round of a row."""
    return table_of_ceilings(ceilings(results))


def table_of_ceilings(lines: Sequence[Measured]) -> Table | None:
    """The table of these rounds, with a sentence for each."""
    shown = [kind for kind in OTHERS if any(kind in line.gains for line in lines)]
    sites = any(line.best_site for line in lines)
    heads = ["FedAvg", *FITTED.values(), *(OTHERS[kind] for kind in shown)]
    splits = sorted({line.split for line in lines})
    rows, partly = [], {}
    for line in lines:
        label = f"{line.label} - round {line.t}" + (f", {line.split}" if len(splits) > 1 else "")
        if line.runs[0] < line.runs[1]:
            partly[label] = line.runs
        cells = [Cell(POINTS * line.score)]
        cells += [_cell(line.gains.get(kind)) for kind in (*FITTED, *shown)]
        cells += [_cell(line.best_site)] if sites else []
        rows.append((label, tuple(cells)))
    notes = (
        *map(sentence, told(lines)),
        *_runs_measured(partly, len(lines)),
        "FedAvg: mean over sites of the score of the sites' models of that round under FedAvg's "
        "weights, in percent. Other columns: points gained over it, ± the 95 % interval over "
        "paired cases.",
        "An oracle: network-wise, layer-wise and scaled weights were fitted to one half of every "
        f"site's {' and '.join(splits)} cases and scored on the "
        "other, both ways round. Nothing was chosen by it, and no method may do this.",
    )
    heads += ["best site"] if sites else []
    return table_of("ceiling", "What other weights could gain", heads, rows, notes)


def _cell(gain: Gain | None) -> Cell:
    if gain is None:
        return Cell()
    return Cell(POINTS * gain.mean, POINTS * gain.margin, show_spread=True)


def _runs_measured(partly: Mapping[str, tuple[int, int]], of: int) -> list[str]:
    """Which lines are not about all runs of their row; unnamed where all are equally so."""
    by_count: dict[tuple[int, int], list[str]] = {}
    for label, runs in partly.items():
        by_count.setdefault(runs, []).append(label)
    return [
        f"Runs measured: {n} of {all_runs}"
        + ("." if len(labels) == of else f" ({'; '.join(labels)}).")
        for (n, all_runs), labels in by_count.items()
    ]


def sentence(line: Measured) -> str:
    """Whether better weights are worth anything here, by the intervals of the fitted ones."""
    kind, verdict = _verdict(line.gains)
    gain = line.gains[kind]
    what = "better" if kind in ALONE else FITTED[kind]
    points = f"{POINTS * gain.mean:.1f} ± {POINTS * gain.margin:.1f} points"
    where = f"{line.label}, round {line.t}"
    where += f", {line.split} cases" if line.split != TEST else ""
    return f"{where}: {what} weights could gain {points} here: {verdict}."


def _verdict(gains: Mapping[str, Gain]) -> tuple[str, str]:
    """The fitted weights that decide, and what their interval says.

    A sure gain counts, however wide another interval is. Weights alone decide; scaled ones are
    told where their gain is sure and that of no weights is, as it is their factor's then.
    """

    def most(kinds: Sequence[str]) -> str:
        return max(kinds, key=lambda kind: gains[kind].mean)

    if sure := [kind for kind in ALONE if gains[kind].low > LITTLE]:
        best = most(sure)
        return best, f"{FITTED[best]} weights are worth learning"
    if gains[SCALED].low > LITTLE:
        return SCALED, "worth learning, with their factor on the whole model"
    if not (unsure := [kind for kind in ALONE if gains[kind].high > LITTLE]):
        best = most(ALONE)
        return best, f"not worth their traffic ({FITTED[best]})"
    if real := [kind for kind in unsure if gains[kind].low > 0]:
        best = most(real)
        return best, f"a real gain, and perhaps a small one ({FITTED[best]})"
    best = most(unsure)
    return best, f"these cases are too few to tell ({FITTED[best]})"
