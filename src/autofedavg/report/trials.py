"""The trials of `autofedavg tune`: how many every row had, and which was chosen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from autofedavg.experiment.trial_names import label_parts, trial_in, validation_score
from autofedavg.report.repeats import Results, Row
from autofedavg.report.tables import Cell, Line, Table, scores_table, table_of


@dataclass(frozen=True)
class Trial:
    """One trial of a row.

    Attributes:
        row: the row's label.
        number: from 1, which is the row as its study has it.
        changes: what is different, in words.
        score: mean validation score of its runs; None where one of them did not finish.
        numbers: the settings of method and training that are numbers, by dotted path.
    """

    row: str
    number: int
    changes: str
    score: float | None
    numbers: Mapping[str, float] = field(default_factory=dict)


def trials_in(results: Results) -> dict[str, list[Trial]]:
    """The trials by the name of the row that they belong to."""
    found: dict[str, list[Trial]] = {}
    for row in results.rows:
        of = trial_in(row.name)
        if of and not any(repeat.tested for repeat in row.repeats):
            name, number = of
            label, changes = label_parts(row.label, number)
            trial = Trial(label, number, changes, _score(row), _numbers(row))
            found.setdefault(name, []).append(trial)
    return {name: sorted(mine, key=lambda trial: trial.number) for name, mine in found.items()}


def _score(row: Row) -> float | None:
    scores = [
        validation_score(repeat.rounds, repeat.config.get("select", "best"))
        for repeat in row.repeats
        if repeat.finished
    ]
    known = [score for score in scores if score is not None]
    return fmean(known) if len(known) == len(row.repeats) else None


def _numbers(row: Row) -> dict[str, float]:
    config = row.repeats[0].config if row.repeats else {}
    return {
        f"{part}.{name}".removeprefix("method."): value
        for part in ("method", "training")
        for name, value in config.get(part, {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest validation score; of equal ones the first."""
    scored = [trial for trial in trials if trial.score is not None]
    return max(scored, key=lambda trial: trial.score or 0.0, default=None)


def at_an_end(trials: Sequence[Trial]) -> dict[str, float]:
    """Chosen numbers of a row that are the least or the greatest that it tried.

    Of two values each is at an end, so a row's own value counts only among three or more.
    """
    best, found = best_of(trials), {}
    for name, value in (best.numbers if best else {}).items():
        tried = {trial.numbers.get(name) for trial in trials}
        kept = value == trials[0].numbers.get(name)
        numbers = {number for number in tried if number is not None}
        if numbers != tried or len(numbers) < (3 if kept else 2):
            continue
        if value in (min(numbers), max(numbers)):
            found[name] = value
    return found


def _at_ends(found: Collection[Sequence[Trial]]) -> list[str]:
    """A note on all chosen numbers at an end, each with the rows that chose it."""
    rows: dict[str, list[str]] = {}
    for trials in found:
        for name, value in at_an_end(trials).items():
            rows.setdefault(f"{name} = {value}", []).append(trials[0].row)
    if not rows:
        return []
    start = "At an end of what was tried; values beyond may be better."
    return [" ".join((start, *(f"{what}: {'; '.join(mine)}." for what, mine in rows.items())))]


def main_table(results: Results) -> Table:
    """The table of scores; of trials, which have none, their own."""
    return trials_table(results) or scores_table(results)


def trials_table(results: Results) -> Table | None:
    """Every row's number of trials, and the chosen one; None where no run is a trial."""
    rows: list[Line] = []
    found = trials_in(results).values()
    for trials in found:
        best = best_of(trials)
        first = trials[0].score if trials[0].number == 1 else None
        cells = [Cell(value=float(len(trials)), text=str(len(trials))), _percent(first)]
        cells += [_percent(best.score if best else None)]
        chosen = f"{best.number}: {best.changes}" if best else "none has a score"
        rows.append((trials[0].row, (*cells, Cell(text=chosen))))
    counts = sorted({len(trials) for trials in found})
    each = ""
    if len(counts) == 1:
        each = f"Every row has {counts[0]} trial{'s' * (counts[0] != 1)}."
    notes = (
        each or f"Rows have different numbers of trials: {', '.join(map(str, counts))}.",
        "Validation scores in percent, of personal models where a method trains some; they alone "
        "choose. Trials compute no test score.",
        *_at_ends(found),
        *(
            f"{trial.row}, trial {trial.number}: no score: not finished, or training failed."
            for trials in found
            for trial in trials
            if trial.score is None
        ),
    )
    heads = ("trials", "score as written", "score of the chosen", "chosen")
    return table_of("trials", "Trials", heads, rows, notes)


def _percent(score: float | None) -> Cell:
    return Cell() if score is None else Cell(100 * score)
