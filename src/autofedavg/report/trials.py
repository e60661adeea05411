"""The trials of `autofedavg tune`: how many every row had, and which was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """

    row: str
    number: int
    changes: str
    score: float | None


def trials_in(results: Results) -> dict[str, list[Trial]]:
    """The trials by the name of the row that they belong to."""
    found: dict[str, list[Trial]] = {}
    for row in results.rows:
        of = trial_in(row.name)
        if of and not any(repeat.tested for repeat in row.repeats):
            name, number = of
            label, changes = label_parts(row.label, number)
            found.setdefault(name, []).append(Trial(label, number, changes, _score(row)))
    return {name: sorted(mine, key=lambda trial: trial.number) for name, mine in found.items()}


def _score(row: Row) -> float | None:
    scores = [
        validation_score(repeat.rounds, repeat.config.get("select", "best"))
        for repeat in row.repeats
        if repeat.finished
    ]
    known = [score for score in scores if score is not None]
    return fmean(known) if len(known) == len(row.repeats) else None


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the highest validation score; of equal ones the first."""
    scored = [trial for trial in trials if trial.score is not None]
    return max(scored, key=lambda trial: trial.score or 0.0, default=None)


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
