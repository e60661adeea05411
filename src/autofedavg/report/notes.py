"""What is said below the table of scores: cases, repeats, what is not counted."""

from __future__ import annotations

from typing import Any

from autofedavg.experiment.selection import where_tested
from autofedavg.report.read import Repeat, Results, Row
from autofedavg.report.values import MANY


def notes_of(results: Results) -> list[str]:
    """What a reader must know to read the table of scores."""
    notes = []
    metrics = sorted({row.metric for row in results.rows})
    data = f" Data: {results.data}." if results.data else ""
    notes.append(f"{', '.join(metrics)} on test cases, in percent; best per column marked.{data}")
    tested = _tested(results)
    notes.append(f"n counts all cases of a site; tested are {tested}.")
    notes.append(f"Repeats (seeds) {_repeats(results)}; ± is the standard deviation over them.")
    folds = [str(fold) for fold in results.rows[0].folds if fold is not None]
    if folds:
        which = f"fold{'s' * (len(folds) > 1)} {', '.join(folds)}"
        notes.append(f"Every repeat pools the test cases of {which}.")
    baseline = results.row(results.baseline)
    if baseline:
        notes.append(
            f"† better than {baseline.label}, Wilcoxon signed-rank over cases, two-sided p < 0.05."
        )
    learning = [r for row in results.rows for r in row.repeats if "learn_on" in r.config["method"]]
    if learning:
        learned = sorted({str(r.config["method"]["learn_on"]) for r in learning})
        same = " (the cases that also select the models)" if any(map(selects, learning)) else ""
        notes.append(f"Aggregation weights are learned on: {', '.join(learned)}{same}.")
    for row in results.rows:
        steps = row.repeats[0].config["method"].get("steps_per_message", 1)
        if steps > 1:
            notes.append(
                f"{row.label}: {steps} steps on beta before the sites are averaged, where "
                "Algorithm 1 takes one."
            )
    last = [row.label for row in results.rows if _tested_last(row)]
    if last:
        rows = "" if len(last) == len(results.rows) else f" of {', '.join(last)}"
        notes.append(f"Tested models{rows}: those after the last round, not the best ones.")
    notes += _own_models(results)
    notes += [
        f"{named(row, repeat)}: resumed on another machine or version."
        for row in results.rows
        for repeat in row.repeats
        if moved(repeat)
    ]
    notes += [
        f"{named(row, repeat)}: {repeat.state}, not counted."
        for row in results.rows
        for repeat in row.repeats
        if not repeat.finished
    ]
    notes += [
        f"{named(row, repeat)}: {', '.join(absent)} did not answer the final test; averages are "
        "over the others."
        for row in results.rows
        for repeat in row.repeats
        if (absent := untested(repeat))
    ]
    notes += [
        f"{named(row, repeat)}: finished, but without test scores; not counted."
        for row in results.rows
        for repeat in row.repeats
        if repeat.finished and not repeat.scores
    ]
    notes += missing_notes(results)
    notes += [f"Left out: {told}." for told in results.damaged]
    notes += _absences(results)
    return notes + [
        f"{row.label}, seed {seed}: not counted, for not all its folds are finished."
        for row in results.rows
        for seed in sorted({repeat.seed for repeat in row.finished} - set(row.whole))
    ]


def _own_models(results: Results) -> list[str]:
    """Where sites' own models were not tested at every site, so that columns are empty."""
    said = {
        "own": "were tested at their own site alone, so there is no local gen",
        "none": "were not tested, so there is neither local avg nor local gen",
    }
    found: dict[str, list[str]] = {}
    for row in results.rows:
        asked = row.repeats[0].config.get("test_local", "auto")
        found.setdefault(where_tested(asked, len(results.sites)), []).append(row.label)
    several = len(found) > 1
    return [
        f"Sites' own models{' of ' + ', '.join(rows) if several else ''} {said[where]}."
        for where, rows in found.items()
        if where in said
    ]


def _repeats(results: Results) -> str:
    """How many a row has: said once, or of whom where rows differ."""
    counts = sorted({len(row.whole) for row in results.rows}, reverse=True)
    if len(counts) == 1:
        return f"per row: {counts[0]}"
    who = {n: " / ".join(r.label for r in results.rows if len(r.whole) == n) for n in counts}
    return "per row: " + "; ".join(f"{n} of {labels}" for n, labels in who.items())


def _tested(results: Results) -> str:
    """Test cases per site, of the run that has most of them."""
    names: dict[str, set[str]] = {site: set() for site in results.sites}
    for row in results.rows:
        for scores in list(row.whole.values())[:1]:  # all repeats test the same cases
            for tested, column in scores.columns():
                names[tested.site].update(column.cases)
    if len(names) > MANY:
        return f"{sum(map(len, names.values()))} in all"
    return ", ".join(f"{len(cases)} of {site}" for site, cases in names.items())


def _absences(results: Results) -> list[str]:
    """Rows in which not every site answered in every round."""
    said = []
    for row in results.rows:
        lines = [line for repeat in row.repeats for line in repeat.rounds]
        absent = sum(0 < len(line.get("answered") or []) < len(results.sites) for line in lines)
        if absent:
            said.append(
                f"{row.label}: in {absent} of {len(lines)} rounds not every site answered; the "
                "models of the others were averaged, with their weights scaled to a sum of one."
            )
        stood_in = sum(_stood_in(line, len(results.sites)) for line in lines)
        if stood_in:
            said.append(
                f"{row.label}: in {stood_in} rounds a site did not validate; its score of the last "
                "round in which it did stands in where the best model is chosen."
            )
        dropped = sorted(
            {
                str(event["site"])
                for line in lines
                for event in line.get("events") or []
                if event["what"] == "dropped"
            }
        )
        if dropped:
            said.append(
                f"{row.label}: answers of {', '.join(dropped)} could not be used and were left out."
            )
    return said


def _stood_in(line: dict[str, Any], K: int) -> bool:
    """Whether a round's validation misses a site; old folders may have sites without any."""
    return "events" in line and 0 < len(line["validation"]["sites"]) < K


def missing_notes(results: Results) -> list[str]:
    """A line per row of runs that the study asks for and that have no folder."""
    by_row: dict[str, list[str]] = {}
    for run in results.missing:
        fold = "" if run.fold is None else f" of fold {run.fold}"
        by_row.setdefault(run.label, []).append(f"{run.seed}{fold}")
    return [
        f"{label}: seed{'s' * (len(seeds) > 1)} {', '.join(seeds)} missing, not begun."
        for label, seeds in by_row.items()
    ]


def named(row: Row, repeat: Repeat) -> str:
    """A run as notes and tables call it."""
    fold = "" if repeat.fold is None else f", fold {repeat.fold}"
    return f"{row.label}, seed {repeat.seed}{fold}"


def _tested_last(row: Row) -> bool:
    return any(repeat.config.get("select") == "last" for repeat in row.repeats)


def selects(repeat: Repeat) -> bool:
    """Whether the cases that the weights are learned on also choose the tested model."""
    held = repeat.environment.get("data", {}).get("validation_is", "validation")
    learned = repeat.config["method"]["learn_on"]
    return repeat.config.get("select", "best") == "best" and learned in ("validation", held)


def untested(repeat: Repeat) -> list[str]:
    """The sites that a finished run has test cases of and no score from (decision 45)."""
    there = {tested.site for tested, _ in repeat.scores.columns(split="test")}
    cases = repeat.environment.get("data", {}).get("cases", {})
    return [site for site in cases if there and site not in there and cases[site].get("test", 1)]


def moved(repeat: Repeat) -> bool:
    """Whether a resumed run went on with other hardware or software than it began with."""
    about = repeat.environment
    keys = ("versions", "device", "processor")
    resumed = about.get("resumed", [])
    return any(entry.get(key) != about.get(key) for entry in resumed for key in keys)
