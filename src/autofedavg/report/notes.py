"""What is said below the table of scores: cases, repeats, what is not counted."""

from __future__ import annotations

from autofedavg.core.evaluation import site_means
from autofedavg.experiment.selection import where_tested
from autofedavg.report.repeats import Repeat, Results, Row, seed_and_fold


def notes_of(results: Results) -> list[str]:
    """What a reader must know to read the table of scores."""
    metrics = sorted({row.metric for row in results.rows})
    data = f" Data: {results.data}." if results.data else ""
    scored = any(row.whole for row in results.rows)
    best = "; best per column marked" if scored else ""
    notes = [f"{', '.join(metrics)} on test cases, in percent{best}.{data}"]
    if scored:
        notes += [
            f"n counts all cases of a site; tested are {_tested(results)}.",
            f"Repeats (seeds) {_repeats(results)}; ± is the standard deviation over them.",
        ]
    else:
        notes.append("n counts all cases of a site. There are no test scores.")
    folds = [str(fold) for fold in results.rows[0].folds if fold is not None]
    if folds:
        which = f"fold{'s' * (len(folds) > 1)} {', '.join(folds)}"
        notes.append(f"Every repeat pools the test cases of {which}.")
    hidden = [row.label for row in results.rows if row.by_means]
    if hidden:
        who = "" if len(hidden) == len(results.rows) else f" of {', '.join(hidden)}"
        notes.append(
            f"Sites{who} disclosed means alone (exchange.disclose): there are no scores, names or "
            "sizes of cases, so there is no test over cases and no picture of one."
        )
    tested = scored and (results.pairings or not results.without_test)
    if (baseline := results.baseline_row) and tested and not baseline.by_means:
        notes.append(
            f"† better than {baseline.label}, Wilcoxon signed-rank over cases, two-sided p < 0.05."
        )
    learning = [repeat for _, repeat in results.runs if "learn_on" in repeat.method]
    if learning:
        learned = sorted({str(repeat.method["learn_on"]) for repeat in learning})
        same = " (the cases that also select the models)" if any(map(selects, learning)) else ""
        notes.append(f"Aggregation weights are learned on: {', '.join(learned)}{same}.")
    notes += [
        f"{row.label}: {row.method['steps_per_message']} steps on beta before the sites are "
        "averaged, where Algorithm 1 takes one."
        for row in results.rows
        if row.method.get("steps_per_message", 1) > 1
    ]
    last = dict.fromkeys(r.label for r, run in results.runs if run.config.get("select") == "last")
    if last:
        rows = "" if len(last) == len(results.rows) else f" of {', '.join(last)}"
        notes.append(f"Tested models{rows}: those after the last round, not the best ones.")
    notes += _own_models(results)
    notes += _of_runs(results)
    notes += _missing(results)
    notes += [f"Left out: {told}." for told in results.damaged]
    for row in results.rows:
        notes += _absences(row, len(results.sites))
    return notes + [
        f"{row.label}, seed {seed}: not counted, for not all its folds are finished."
        for row in results.rows
        for seed in sorted({repeat.seed for repeat in row.finished} - set(row.whole))
    ]


def _of_runs(results: Results) -> list[str]:
    """What is special about single runs, a kind after the other."""
    moves, states, absences, empty = [], [], [], []
    for row, repeat in results.runs:
        run = named(row, repeat)
        if moved(repeat):
            moves.append(f"{run}: resumed on another machine or version.")
        if not repeat.finished:
            hint = "; `autofedavg resume` continues it" if repeat.state == "killed" else ""
            states.append(f"{run}: {repeat.state}, not counted{hint}.")
        elif not repeat.scores:
            empty.append(f"{run}: finished, but without test scores; not counted.")
        if absent := untested(repeat):
            sites = ", ".join(absent)
            absences.append(
                f"{run}: {sites} did not answer the final test; averages are over the others."
            )
    return [*moves, *states, *absences, *empty]


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
    who: dict[int, list[str]] = {}
    for row in sorted(results.rows, key=lambda row: -len(row.whole)):
        who.setdefault(len(row.whole), []).append(row.label)
    if len(who) == 1:
        return f"per row: {next(iter(who))}"
    return "per row: " + "; ".join(f"{n} of {' / '.join(labels)}" for n, labels in who.items())


def _tested(results: Results) -> str:
    """Test cases per site, of the run that has most of them; by count where names are unknown."""
    names: dict[str, set[str]] = {site: set() for site in results.sites}
    for row in results.rows:
        for scores in list(row.whole.values())[:1]:  # all repeats test the same cases
            for tested, column in scores.columns():
                names[tested.site].update(column.cases)
    counts = {site: len(cases) for site, cases in names.items()}
    for row in results.rows:
        for scores in list(row.whole.values())[:1]:
            for tested, mean in site_means(scores, row.metric):
                counts[tested.site] = max(counts[tested.site], mean.cases)
    if results.many_sites:
        return f"{sum(counts.values())} in all"
    return ", ".join(f"{n} of {site}" for site, n in counts.items())


def _absences(row: Row, K: int) -> list[str]:
    """In how many rounds not every site answered or validated, and whose answers were dropped."""
    said = []
    lines = [line for repeat in row.repeats for line in repeat.rounds]
    absent = sum(0 < len(line.get("answered") or []) < K for line in lines)
    if absent:
        said.append(
            f"{row.label}: in {absent} of {len(lines)} rounds not every site answered; the "
            "models of the others were averaged, with their weights scaled to a sum of one."
        )
    # Folders of earlier versions have no events, and may have sites without any validation.
    stood_in = sum("events" in ln and 0 < len(ln["validation"]["sites"]) < K for ln in lines)
    if stood_in:
        said.append(
            f"{row.label}: in {stood_in} rounds a site did not validate; its score of the last "
            "round in which it did stands in where the best model is chosen."
        )
    events = [event for line in lines for event in line.get("events") or []]
    said += [
        f"{row.label}: {event['site']} had lost what it had kept from round to round, and started "
        f"again in round {line['t']}."
        for line in lines
        for event in line.get("events") or []
        if event["what"] == "restarted"
    ]
    dropped = sorted({str(event["site"]) for event in events if event["what"] == "dropped"})
    if dropped:
        said.append(
            f"{row.label}: answers of {', '.join(dropped)} could not be used and were left out."
        )
    return said


def _missing(results: Results) -> list[str]:
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
    return f"{row.label}, {seed_and_fold(repeat)}"


def selects(repeat: Repeat) -> bool:
    """Whether the cases that the weights are learned on also choose the tested model."""
    held = repeat.environment.get("data", {}).get("validation_is", "validation")
    chosen = repeat.config.get("select", "best") == "best"
    return chosen and repeat.method["learn_on"] in ("validation", held)


def untested(repeat: Repeat) -> list[str]:
    """The sites that a finished run has test cases of and no score from (decision 45)."""
    there = {tested.site for tested in repeat.scores.groups if tested.split == "test"}
    cases = repeat.environment.get("data", {}).get("cases", {})
    return [site for site in cases if there and site not in there and cases[site].get("test", 1)]


def moved(repeat: Repeat) -> bool:
    """Whether a resumed run went on with other hardware or software than it began with."""
    about = repeat.environment
    keys = ("versions", "device", "processor")
    resumed = about.get("resumed", [])
    return any(entry.get(key) != about.get(key) for entry in resumed for key in keys)
