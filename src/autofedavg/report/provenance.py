"""Where the numbers come from: settings with their origin, runs, machines, versions, data."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from autofedavg.experiment.machine_paths import PATHS, run_name, tells_place
from autofedavg.report.notes import moved, named, selects
from autofedavg.report.read import Repeat, Results, Row
from autofedavg.report.tables import Cell, Table
from autofedavg.report.values import flat

# They tell runs, or machines, apart and set nothing.
_NAMES = ("name", "label", "task.fold", *(f"task.{name}" for name in PATHS))
Values = dict[str, str]
Machine = tuple[tuple[str, str], ...]


def settings_table(results: Results) -> Table:
    """Settings that all rows share: value and origin."""
    values = [_values(row.repeats[0]) for row in results.rows]
    shared = [path for path in values[0] if all(v.get(path) == values[0][path] for v in values)]
    rows = tuple(
        (path, (Cell(text=values[0][path]), Cell(text=_origins(results, path)))) for path in shared
    )
    notes = (
        'Origin: "paper" with the section, "derived", "ours", or "study" where the study file '
        "sets it. Where files lie on a machine is left out.",
    )
    return Table("settings", "Settings of all rows", ("value", "origin"), rows, notes, words=True)


def differing_table(results: Results) -> Table | None:
    """Settings in which rows differ, a row each; empty where a method has no such setting."""
    values = [_values(row.repeats[0]) for row in results.rows]
    paths = list(dict.fromkeys(path for known in values for path in known))
    paths = [path for path in paths if len({known.get(path) for known in values}) > 1]
    if not paths:
        return None
    rows = tuple(
        (row.label, tuple(Cell(text=_with_origin(row, path, known.get(path))) for path in paths))
        for row, known in zip(results.rows, values, strict=True)
    )
    notes = ("In brackets the origin, where it is not the study file.",)
    heads = tuple(paths)
    return Table("settings-rows", "Settings by row", heads, rows, notes, words=True)


def runs_table(results: Results) -> Table:
    """Every run: its state and on what it ran; and those that are missing."""
    machines = _machines(results)
    rows = [
        (named(row, repeat), tuple(Cell(text=text) for text in _run(repeat, machines)))
        for row in results.rows
        for repeat in row.repeats
    ]
    for run in results.missing:
        fold = "" if run.fold is None else f", fold {run.fold}"
        cells = (Cell(text="missing"), *[Cell()] * 4)
        rows.append((f"{run.label}, seed {run.seed}{fold}", cells))
    notes = tuple(
        f"{named(row, repeat)} went on with another machine or version after round "
        + ", ".join(str(entry["after_round"]) for entry in repeat.environment["resumed"])
        + "."
        for row in results.rows
        for repeat in row.repeats
        if moved(repeat)
    )
    heads = ("state", "rounds", "last round ended", "machine", "folder")
    return Table("runs", "Runs", heads, tuple(rows), notes, words=True)


def machines_table(results: Results) -> Table:
    """Hardware, versions and commit; a column for each combination that runs were made with."""
    machines = _machines(results)
    facts = list(dict.fromkeys(fact for machine in machines for fact, _ in machine))
    known = [dict(machine) for machine in machines]
    rows = tuple(
        (fact, tuple(Cell(text=machine.get(fact, "not recorded")) for machine in known))
        for fact in facts
    )
    heads = tuple(f"machine {number}" for number in range(1, len(machines) + 1))
    return Table("machines", "Machines, versions, commit", heads, rows, words=True)


def data_table(results: Results) -> Table:
    """Cases per site and split, with the digests that pin them."""
    repeat = results.rows[0].repeats[0]
    data = repeat.environment["data"]
    splits = list(dict.fromkeys(split for parts in data["cases"].values() for split in parts))
    rows = tuple(
        (site, tuple(Cell(text=f"{parts.get(split, 0):,}") for split in splits))
        for site, parts in sorted(data["cases"].items())
    )
    notes = [f"Data: {data['data']}."]
    if repeat.fold is not None:
        notes.append(f"Counts of fold {repeat.fold}; other folds deal the same cases otherwise.")
    for key, what in (
        ("split_sha256", "splits"),
        ("content_sha256", "contents of the files"),
        ("folds_sha256", "folds"),
    ):
        if data.get(key):
            notes.append(f"SHA-256 of the {what}: {data[key]}")
    notes += _learning(results)
    return Table("data", "Data", tuple(splits), rows, tuple(notes), words=True)


def _learning(results: Results) -> list[str]:
    """Which split learned the weights, and whether it also chose the tested models."""
    said = []
    for row in results.rows:
        method = row.repeats[0].config["method"]
        if "learn_on" in method:
            both = "also chose" if any(map(selects, row.repeats)) else "did not choose"
            said.append(
                f"{row.label}: weights learned on the {method['learn_on']} cases, which {both} the "
                "tested model."
            )
    return said


def _run(repeat: Repeat, machines: Sequence[Machine]) -> list[str]:
    last = repeat.rounds[-1] if repeat.rounds else {}
    ended = time.gmtime(last["time"]) if "time" in last else None
    return [
        repeat.state,
        f"{last.get('t', 0)} of {repeat.config.get('rounds', '?')}",
        time.strftime("%Y-%m-%d %H:%M UTC", ended) if ended else "",
        str(machines.index(_machine(repeat)) + 1),
        run_name(repeat.folder),
    ]


def _machines(results: Results) -> list[Machine]:
    return list(dict.fromkeys(_machine(r) for row in results.rows for r in row.repeats))


def _machine(repeat: Repeat) -> Machine:
    about = repeat.environment
    keys = ("device", "processor", "cores", "platform", "engine", "workers", "threads",
            "deterministic_algorithms", "commit")  # fmt: skip
    facts = [(key.replace("_", " "), str(about.get(key))) for key in keys]
    versions = about.get("versions", {})
    return tuple(
        (name, "not recorded" if value == "None" else value)
        for name, value in [*facts, *((name, str(v)) for name, v in versions.items())]
    )


def _values(repeat: Repeat) -> Values:
    return {
        path: json.dumps(value, ensure_ascii=False)
        for path, value in flat(repeat.config)
        if path not in _NAMES and not tells_place(path, value)
    }


def _with_origin(row: Row, path: str, value: str | None) -> str:
    if value is None:
        return ""
    origin = row.repeats[0].origin(path)
    return value if origin in ("", "study") else f"{value} [{origin}]"


def _origins(results: Results, path: str) -> str:
    """Where a value comes from; rows may have the same one for different reasons."""
    known = dict.fromkeys(row.repeats[0].origin(path) for row in results.rows)
    return " / ".join(filter(None, known)) or "not recorded"
