"""Where the numbers come from: settings with their origin, runs, machines, versions, data."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

from autofedavg.experiment.machine_paths import PATHS, run_name, tells_place
from autofedavg.report.notes import moved, named, selects
from autofedavg.report.repeats import Repeat, Results, Row, flat, seed_and_fold
from autofedavg.report.tables import Cell, Table

# They tell runs, or machines, apart and set nothing.
_NAMES = ("name", "label", "task.fold", *(f"task.{name}" for name in PATHS))
Machine = tuple[tuple[str, str], ...]


def settings_table(results: Results) -> Table:
    """Settings that all rows share: value and origin."""
    values = [_values(row) for row in results.rows]
    rows = [
        (path, (value, _origins(results, path)))
        for path, value in values[0].items()
        if all(other.get(path) == value for other in values)
    ]
    notes = (
        'Origin: "paper" with the section, "derived", "ours", or "study" where the study file '
        "sets it. Where files lie on a machine is left out.",
    )
    return _words("settings", "Settings of all rows", ("value", "origin"), rows, notes)


def differing_table(results: Results) -> Table | None:
    """Settings in which rows differ, a row each; empty where a method has no such setting."""
    values = [_values(row) for row in results.rows]
    paths = list(dict.fromkeys(path for known in values for path in known))
    paths = [path for path in paths if len({known.get(path) for known in values}) > 1]
    if not paths:
        return None
    rows = [
        (row.label, [_with_origin(row, path, known.get(path)) for path in paths])
        for row, known in zip(results.rows, values, strict=True)
    ]
    notes = ("In brackets the origin, where it is not the study file.",)
    return _words("settings-rows", "Settings by row", paths, rows, notes)


def runs_table(results: Results) -> Table:
    """Every run: its state and on what it ran; and those that are missing."""
    machines = _machines(results)
    rows = [(named(row, repeat), _run(repeat, machines)) for row, repeat in results.runs]
    rows += [
        (f"{run.label}, {seed_and_fold(run)}", ["missing", *[""] * 4]) for run in results.missing
    ]
    notes = [
        f"{named(row, repeat)} went on with another machine or version after round "
        + ", ".join(str(entry["after_round"]) for entry in repeat.environment["resumed"])
        + "."
        for row, repeat in results.runs
        if moved(repeat)
    ]
    heads = ("state", "rounds", "last round ended", "machine", "folder")
    return _words("runs", "Runs", heads, rows, notes)


def machines_table(results: Results) -> Table:
    """Hardware, versions and commit; a column for each combination that runs were made with."""
    machines = [dict(machine) for machine in _machines(results)]
    facts = dict.fromkeys(fact for machine in machines for fact in machine)
    rows = [(fact, [known.get(fact, "not recorded") for known in machines]) for fact in facts]
    heads = [f"machine {number}" for number in range(1, len(machines) + 1)]
    return _words("machines", "Machines, versions, commit", heads, rows)


def data_table(results: Results) -> Table:
    """Cases per site and split, with the digests that pin them."""
    repeat = results.rows[0].repeats[0]
    data = repeat.environment["data"]
    splits = list(dict.fromkeys(split for parts in data["cases"].values() for split in parts))
    rows = [
        (site, [f"{parts.get(split, 0):,}" for split in splits])
        for site, parts in sorted(data["cases"].items())
    ]
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
    for row in results.rows:
        if "learn_on" in row.method:
            both = "also chose" if any(map(selects, row.repeats)) else "did not choose"
            notes.append(
                f"{row.label}: weights learned on the {row.method['learn_on']} cases, which {both} "
                "the tested model."
            )
    return _words("data", "Data", splits, rows, notes)


def _words(
    name: str,
    title: str,
    heads: Iterable[str],
    rows: Iterable[tuple[str, Iterable[str]]],
    notes: Iterable[str] = (),
) -> Table:
    """A table of words."""
    lines = tuple((label, tuple(Cell(text=text) for text in texts)) for label, texts in rows)
    return Table(name, title, tuple(heads), lines, tuple(notes), words=True)


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
    return list(dict.fromkeys(_machine(repeat) for _, repeat in results.runs))


def _machine(repeat: Repeat) -> Machine:
    about = repeat.environment
    keys = ("device", "processor", "cores", "platform", "engine", "workers", "threads",
            "deterministic_algorithms", "commit")  # fmt: skip
    facts = {key.replace("_", " "): about.get(key) for key in keys} | about.get("versions", {})
    return tuple((n, "not recorded" if v in (None, "None") else str(v)) for n, v in facts.items())


def _values(row: Row) -> dict[str, str]:
    return {
        path: json.dumps(value, ensure_ascii=False)
        for path, value in flat(row.repeats[0].config)
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


TABLES = (runs_table, machines_table, data_table, settings_table, differing_table)
