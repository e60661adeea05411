"""The paper's table and the table of aggregation weights, ready to be printed in any format."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autofedavg.core.evaluation import Paired, mean_and_spread
from autofedavg.report.notes import notes_of
from autofedavg.report.repeats import Results, Row


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


Line = tuple[str, tuple[Cell, ...]]  # a table's row: its label and its cells


@dataclass(frozen=True)
class Table:
    """Column heads, rows of (label, cells), and notes below.

    Attributes:
        words: whether its cells are words, not numbers.
        families: of every row, where rows stand under the names of their families.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    decimals: int = 2
    words: bool = False
    families: tuple[str, ...] = ()

    @property
    def headed(self) -> Iterator[tuple[str, str, tuple[Cell, ...]]]:
        """The rows: a heading where a family begins, label and cells."""
        before = ""
        families = self.families or ("",) * len(self.rows)
        for (label, cells), family in zip(self.rows, families, strict=True):
            yield family.capitalize() if family != before else "", label, cells
            before = family


MEAN = "mean"  # of many sites' own models


def table_of(
    name: str,
    title: str,
    heads: Sequence[str],
    rows: Sequence[Line],
    notes: Sequence[str] = (),
    *,
    decimals: int = 2,
    turn: bool = False,
) -> Table | None:
    """A table of numbers where it has rows; turned, its rows are columns."""
    if not rows:
        return None
    if turn:
        lines = [(head, tuple(cells[k] for _, cells in rows)) for k, head in enumerate(heads)]
        heads, rows = [label for label, _ in rows], lines
    return Table(name, title, tuple(heads), tuple(rows), tuple(notes), decimals)


def scores_table(results: Results) -> Table:
    """Per-site score, global test avg, local avg and local gen of every row, in percent.

    Many sites have a table of their own, `sites_table`, and their own models stand as a mean.
    """
    heads = [f"{site} (n={n})" for site, n in results.sites.items()]
    heads += ["global test avg", "local avg", "local gen"]
    shown = slice(len(results.sites) if results.many_sites else 0, None)
    rows = tuple((label, cells[shown]) for label, cells in mark_best(_all_scores(results)))
    notes = tuple(notes_of(results))
    return Table("scores", results.title, tuple(heads[shown]), rows, notes)


def sites_table(results: Results) -> Table | None:
    """The global models' scores, a line per site; None where the columns of `scores` hold them."""
    if not results.many_sites:
        return None
    rows = [line for line in _all_scores(results) if line[0] in results.labels]
    notes = ["Test score of the global model, in percent; best per site marked."]
    notes += [note for note in notes_of(results) if note.startswith("†")]
    heads = [f"{site} (n={n})" for site, n in results.sites.items()]
    return table_of("sites", "Sites", heads, mark_best(rows), notes, turn=True)


def personal_table(results: Results) -> Table | None:
    """Global and personal models' averages and worst sites, where some row has personal models."""
    if not any(summary.personal for row in results.rows for summary in row.summaries):
        return None
    columns = ("global_test_avg", "worst_site", "personal_avg", "personal_worst")
    rows = [
        (row.label, tuple(percent_cell(getattr(s, c) for s in row.summaries) for c in columns))
        for row in results.rows
        if any(summary.by_site or summary.personal for summary in row.summaries)
    ]
    notes = (
        "Test scores in percent; best per column marked. Worst: the site with the lowest mean.",
        "A personal model is tested at its own site alone, so it has no score elsewhere.",
    )
    heads = ("global test avg", "worst site", "personal avg", "personal worst")
    return table_of("personal", "Personal models", heads, mark_best(rows), notes)


def worst_table(results: Results) -> Table | None:
    """The site that the global model serves worst, next to the average; None with one site."""
    rows = []
    for row in results.rows:
        tested = [summary for summary in row.summaries if len(summary.by_site) > 1]
        worst = [min((score, site) for site, score in s.by_site.items())[1] for s in tested]
        below = [(s.global_test_avg or 0.0) - (s.worst_site or 0.0) for s in tested]
        if tested:
            cells = [percent_cell(s.global_test_avg for s in tested)]
            cells += [percent_cell(s.worst_site for s in tested), percent_cell(below)]
            rows.append((row.label, (*cells, Cell(text=_most_often(worst)))))
    notes = (
        "Test score of the global model in percent: mean over sites, and at the site where it is "
        "lowest, found in every repeat by itself; best of these columns marked.",
    )
    heads = ("global test avg", "worst site", "points below avg", "which site")
    marked = mark_best([(label, cells[:2]) for label, cells in rows])
    lines = [(label, (*m, *cells[2:])) for (label, m), (_, cells) in zip(marked, rows, strict=True)]
    return table_of("worst", "Worst site", heads, lines, notes)


def _most_often(names: Sequence[str]) -> str:
    """The name that occurs most often, and how often where it is not always."""
    ((name, count),) = Counter(names).most_common(1)
    if count == len(names):
        return name
    return f"{name} in {count} of {len(names)}" if count > 1 else "varies"


def weights_table(results: Results) -> Table | None:
    """Each row's aggregation weights in the last round; layer-wise ones as their mean."""
    rows = []
    for row in results.rows:
        lasts = [repeat.rounds[-1]["alpha"] for repeat in row.counted if repeat.rounds]
        per_site = zip(*(map(mean_over_layers, alpha) for alpha in lasts if alpha), strict=True)
        if cells := tuple(map(mean_cell, per_site)):
            rows.append((row.label, cells))
    notes = ("Weights of the last round; layer-wise weights are averaged over layers.",)
    title, sites = "Aggregation weights alpha", list(results.sites)
    return table_of("weights", title, sites, rows, notes, decimals=3, turn=results.many_sites)


def _all_scores(results: Results) -> list[Line]:
    """A line for every row; of a row without a global model, one for every site's own model."""
    rows: list[Line] = []
    for row in results.rows:
        if row.summaries and row.summaries[0].matrix and not row.summaries[0].by_site:
            rows += _local_mean(results, row) if results.many_sites else _local_rows(results, row)
        else:
            rows.append((row.label, _global_cells(results, row)))
    return rows


def _global_cells(results: Results, row: Row) -> tuple[Cell, ...]:
    pairing = results.pairings.get(row.name)
    cells = [
        percent_cell((s.by_site.get(site) for s in row.summaries), spread=False)
        for site in results.sites
    ]
    cells.append(percent_cell(summary.global_test_avg for summary in row.summaries))
    if pairing:
        places = (*results.sites, None)
        cells = [replace(c, test=pairing.test(k)) for c, k in zip(cells, places, strict=True)]
    return _from(results, row, (*cells, *_local_columns(row)))


def _from(results: Results, row: Row, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells with where their cases are: a site's for its column, the row's for the others."""
    places = (*results.sites, *[None] * (len(cells) - len(results.sites)))
    return tuple(
        replace(cell, source=(row.name, site)) if cell.value is not None else cell
        for cell, site in zip(cells, places, strict=True)
    )


def _local_rows(results: Results, row: Row) -> list[Line]:
    """One row per site's own model; local avg and gen stand once, in the middle, as in print."""
    rows = []
    for number, k in enumerate(results.sites):
        own = [summary.matrix.get(k, {}) for summary in row.summaries]
        cells = [percent_cell((each.get(j) for each in own), spread=False) for j in results.sites]
        cells.append(percent_cell(mean_known(each.values()) for each in own))
        cells += _local_columns(row) if number == len(results.sites) // 2 else (Cell(), Cell())
        rows.append((f"{row.label} - {k}", _from(results, row, cells)))
    return rows


def _local_mean(results: Results, row: Row) -> list[Line]:
    """All sites' own models in one row, the mean over them; without the sites' columns."""
    average = percent_cell(
        mean_known(mean_known(own.values()) for own in s.matrix.values()) for s in row.summaries
    )
    cells = (*[Cell()] * len(results.sites), average, *_local_columns(row))
    return [(f"{row.label} - {MEAN}", _from(results, row, cells))]


def row_labels(results: Results) -> dict[str, str]:
    """A table line's label -> the label of the row it belongs to."""
    known = {row.label: row.label for row in results.rows}
    for part in (*results.sites, MEAN):
        known |= {f"{row.label} - {part}": row.label for row in results.rows}
    return known


def _local_columns(row: Row) -> tuple[Cell, Cell]:
    return (
        percent_cell((s.local_avg for s in row.summaries), spread=False),
        percent_cell((s.local_gen for s in row.summaries), spread=False),
    )


def mean_global(row: Row) -> float | None:
    """A row's global test avg in percent, mean over its repeats, as in the table."""
    return percent_cell(summary.global_test_avg for summary in row.summaries).value


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def mean_cell(values: Sequence[float], *, spread: bool = False) -> Cell:
    """The mean over the repeats; with its spread, where that is shown."""
    return Cell(*mean_and_spread(values), spread) if values else Cell()


def percent_cell(values: Iterable[float | None], *, spread: bool = True) -> Cell:
    """The mean over the repeats of shares of one, in percent."""
    return mean_cell([100 * value for value in values if value is not None], spread=spread)


def mark_best(rows: Sequence[Line]) -> tuple[Line, ...]:
    """The rows with the best cell of every column marked."""
    columns = zip(*(cells for _, cells in rows), strict=True)
    tops = [max((c.value for c in col if c.value is not None), default=None) for col in columns]
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
