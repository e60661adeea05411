"""The paper's table and the table of aggregation weights, ready to be printed in any format."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autofedavg.core.evaluation import Paired, Summary, case_means, compare, mean_and_spread
from autofedavg.report.notes import notes_of
from autofedavg.report.read import Results, Row
from autofedavg.report.values import MANY


@dataclass(frozen=True)
class Cell:
    """A number with what the paper's tables show beside it, or plain words.

    Attributes:
        text: shown to people instead of the number; programs get the number where there is one.
        source: row and site (None for all) whose cases it is made from.
    """

    value: float | None = None
    spread: float | None = None
    show_spread: bool = False
    test: Paired | None = None
    best: bool = False
    text: str = ""
    source: tuple[str, str | None] | None = None


@dataclass(frozen=True)
class Table:
    """Column heads, rows of (label, cells), and notes below.

    Attributes:
        words: whether its cells are words, not numbers.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    notes: tuple[str, ...] = field(default_factory=tuple)
    decimals: int = 2
    words: bool = False


Rows = tuple[tuple[str, tuple[Cell, ...]], ...]
MEAN = "mean"  # of many sites' own models
CaseScores = dict[tuple[str, str], float]  # by site and case


def scores_table(results: Results) -> Table:
    """Per-site score, global test avg, local avg and local gen of every row, in percent.

    Many sites have a table of their own, `sites_table`, and their own models stand as a mean.
    """
    table, K = _all_scores(results), len(results.sites)
    if K <= MANY:
        return table
    rows = tuple((label, cells[K:]) for label, cells in table.rows)
    return replace(table, heads=table.heads[K:], rows=rows)


def sites_table(results: Results) -> Table | None:
    """The global models' scores, a line per site; None where the columns of `scores` hold them."""
    if len(results.sites) <= MANY:
        return None
    table, labels = _all_scores(results), {row.label for row in results.rows}
    rows = [(label, cells) for label, cells in table.rows if label in labels]
    if not rows:
        return None
    notes = ["Test score of the global model, in percent; best per site marked."]
    notes += [note for note in table.notes if note.startswith("†")]
    heads = table.heads[: len(results.sites)]
    return Table("sites", "Sites", *turned(heads, mark_best(rows)), tuple(notes))


def _all_scores(results: Results) -> Table:
    baseline = results.row(results.baseline)
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for row in results.rows:
        summaries = row.summaries
        if summaries and summaries[0].matrix and not summaries[0].by_site:
            local = _local_rows if len(results.sites) <= MANY else _local_mean
            rows += local(row, summaries, list(results.sites))
        else:
            against = None if row.name == results.baseline else baseline
            rows.append((row.label, _global_cells(row, summaries, list(results.sites), against)))
    heads = (
        *(f"{site} (n={n})" for site, n in results.sites.items()),
        "global test avg",
        "local avg",
        "local gen",
    )
    return Table("scores", results.title, heads, mark_best(rows), tuple(notes_of(results)))


def weights_table(results: Results) -> Table | None:
    """Each row's aggregation weights in the last round; layer-wise ones as their mean."""
    rows = []
    for row in results.rows:
        counted = row.whole
        lasts = [
            repeat.rounds[-1]
            for repeat in row.finished
            if repeat.seed in counted and repeat.rounds and repeat.rounds[-1]["alpha"]
        ]
        if lasts:
            per_run = [[mean_over_layers(a) for a in last["alpha"]] for last in lasts]
            cells = [_cell([run[k] for run in per_run]) for k in range(len(per_run[0]))]
            rows.append((row.label, tuple(cells)))
    if not rows:
        return None
    notes = ("Weights of the last round; layer-wise weights are averaged over layers.",)
    shown = tuple(results.sites), tuple(rows)
    if len(results.sites) > MANY:
        shown = turned(*shown)
    return Table("weights", "Aggregation weights alpha", *shown, notes, decimals=3)


def turned(heads: Sequence[str], rows: Rows) -> tuple[tuple[str, ...], Rows]:
    """Columns as rows, and rows as columns."""
    lines = tuple((head, tuple(cells[k] for _, cells in rows)) for k, head in enumerate(heads))
    return tuple(label for label, _ in rows), lines


def _global_cells(
    row: Row,
    summaries: Sequence[Summary],
    sites: Sequence[str],
    baseline: Row | None,
) -> tuple[Cell, ...]:
    if not summaries:
        return (Cell(),) * (len(sites) + 3)
    own, against = paired_scores(row, baseline) if baseline else ({}, {})

    def tested(cell: Cell, site: str | None) -> Cell:
        return replace(cell, test=compare(own, against, site)) if against else cell

    cells = [tested(_cell(_percent(s.by_site.get(k) for s in summaries)), k) for k in sites]
    average = _cell(_percent(s.global_test_avg for s in summaries), spread=True)
    return _from(row, sites, (*cells, tested(average, None), *_local_columns(summaries)))


def _from(row: Row, sites: Sequence[str], cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells with where their cases are: a site's for its column, the row's for the others."""
    places = (*sites, *[None] * (len(cells) - len(sites)))
    return tuple(
        replace(cell, source=(row.name, site)) if cell.value is not None else cell
        for cell, site in zip(cells, places, strict=True)
    )


def _local_rows(
    row: Row, summaries: Sequence[Summary], sites: Sequence[str]
) -> list[tuple[str, tuple[Cell, ...]]]:
    """One row per site's own model; local avg and gen stand once, in the middle, as in print."""
    rows = []
    for number, k in enumerate(sites):
        own = [s.matrix.get(k, {}) for s in summaries]
        cells = [_cell(_percent(row.get(j) for row in own)) for j in sites]
        means = (mean_known(row.values()) for row in own)
        average = _cell(_percent(means), spread=True)
        middle = number == len(sites) // 2
        shared = _local_columns(summaries) if middle else (Cell(), Cell())
        rows.append((f"{row.label} - {k}", _from(row, sites, (*cells, average, *shared))))
    return rows


def _local_mean(
    row: Row, summaries: Sequence[Summary], sites: Sequence[str]
) -> list[tuple[str, tuple[Cell, ...]]]:
    """All sites' own models in one row, the mean over them; without the sites' columns."""
    averages = (
        mean_known(mean_known(own.values()) for own in s.matrix.values()) for s in summaries
    )
    average = _cell(_percent(averages), spread=True)
    cells = (*[Cell()] * len(sites), average, *_local_columns(summaries))
    return [(f"{row.label} - {MEAN}", _from(row, sites, cells))]


def _local_columns(summaries: Sequence[Summary]) -> tuple[Cell, Cell]:
    return (
        _cell(_percent(s.local_avg for s in summaries)),
        _cell(_percent(s.local_gen for s in summaries)),
    )


def paired_scores(row: Row, baseline: Row) -> tuple[CaseScores, CaseScores]:
    """The global models' test scores of both: means over the seeds that both have.

    Where they share none, over all that each has.
    """
    shared = row.whole.keys() & baseline.whole.keys()
    own, against = (
        case_means([each.whole[s] for s in each.whole if s in shared or not shared], each.metric)
        for each in (row, baseline)
    )
    return own, against


def mean_global(row: Row) -> float | None:
    """A row's global test avg in percent, mean over its repeats, as in the table."""
    return _cell(_percent(summary.global_test_avg for summary in row.summaries)).value


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _percent(values: Iterable[float | None]) -> list[float]:
    return [100 * value for value in values if value is not None]


def _cell(values: Sequence[float], *, spread: bool = False) -> Cell:
    if not values:
        return Cell()
    mean, deviation = mean_and_spread(values)
    return Cell(mean, deviation, spread)


def round_cell(values: Sequence[float]) -> Cell:
    """The mean of whole numbers over the repeats, such as rounds."""
    cell = _cell(values)
    return cell if cell.value is None else replace(cell, text=f"{cell.value:.0f}")


def percent_cell(values: Iterable[float | None]) -> Cell:
    """The mean of shares of one over the repeats, in percent, with its spread."""
    return _cell(_percent(values), spread=True)


def mark_best(
    rows: Sequence[tuple[str, tuple[Cell, ...]]],
) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
    """The rows with the best cell of every column marked."""
    columns = list(zip(*(cells for _, cells in rows), strict=True))
    tops = [
        max((c.value for c in column if c.value is not None), default=None) for column in columns
    ]
    return tuple(
        (
            label,
            tuple(
                replace(cell, best=cell.value is not None and cell.value == top)
                for cell, top in zip(cells, tops, strict=True)
            ),
        )
        for label, cells in rows
    )


def mean_over_layers(alpha: Any) -> float:
    """A site's weight; of a layer-wise one the mean."""
    return statistics.fmean(alpha) if isinstance(alpha, list) else float(alpha)
