"""The tables of several studies side by side: scores, ranks, risks and differences."""

from __future__ import annotations

from autofedavg.report.overview import Overview
from autofedavg.report.repeats import flat
from autofedavg.report.seed_gains import gain_over, holm, p_cell, verdict
from autofedavg.report.tables import Cell, Table, mark_best, percent_cell, table_of

ALL = "all studies"


def overview_tables(overview: Overview) -> list[Table]:
    """Those that have rows."""
    if not overview.rows:
        return []
    made = (_scores(overview), _ranks(overview), _risks(overview), _gains(overview))
    return [table for table in made if table]


def _scores(overview: Overview) -> Table | None:
    rows = [
        (label, tuple(percent_cell(s.global_test_avg for s in row.summaries) for row in same))
        for label, same in overview.rows.items()
    ]
    notes = (
        "Global test avg in percent, best per study marked; ± is the standard deviation over "
        "repeats (seeds).",
        _repeats(overview),
        *overview.left_out,
        *_tuned(overview),
    )
    heads = list(overview.compared)
    return table_of("overview", "Scores over studies", heads, mark_best(rows), notes)


def _ranks(overview: Overview) -> Table | None:
    if len(overview.rows) < 2:
        return None
    by_label = dict(zip(overview.rows, zip(*overview.ranks, strict=True), strict=True))
    rows = [
        (label, (*(Cell(rank, text=f"{rank:g}") for rank in by_label[label]), Cell(mean)))
        for label, mean in overview.ranking.items()
    ]
    notes = [
        "Ranks by global test avg, mean over seeds; 1 is the highest, and equal scores share the "
        "mean of their ranks. The row with the lowest mean rank stands first.",
        *overview.tested,
    ]
    heads = (*overview.compared, "mean rank")
    return table_of("ranks", "Ranks over studies", heads, rows, notes)


def _risks(overview: Overview) -> Table | None:
    if len(overview.rows) < 2:
        return None
    rows = [
        (label, tuple(Cell(points) for points in (*behind, max(behind))))
        for label, behind in overview.behind.items()
    ]
    notes = (
        "Points of global test avg behind the best of these rows in a study, mean over seeds. Last "
        "column: where they are most, which is what a row may cost those who do not know which "
        "study is like their federation. The row with the least stands first.",
        "The best row of a study is partly lucky, and so is the row that stands first. Rows a few "
        "points apart may change places with other seeds: see the differences with intervals.",
    )
    heads = (*overview.compared, "furthest behind")
    return table_of("risks", "Points behind the best row", heads, rows, notes)


def _gains(overview: Overview) -> Table | None:
    if not overview.gains:
        return None
    overall = overview.overall
    sure, rows = holm(overall), []
    for label, studies in overview.gains.items():
        found = [gain_over([gains]) for gains in studies] + [overall.get(label)]
        cells = [Cell(gain.mean, text=str(gain)) if gain else Cell() for gain in found]
        test = overall[label].interval if label in overall else None
        tests = (p_cell(test.p), p_cell(sure[label])) if test else (Cell(), Cell())
        rows.append((label, (*cells, *tests)))
    notes = (
        f"Global test avg of a row minus that of {overview.baseline} with the same seed, in "
        "points: mean over seeds, in brackets Student's 95 % interval. Without an interval: one "
        "seed.",
        "All studies: mean over studies, each counting equally. Interval and p (two-sided t-test, "
        "degrees of freedom by Welch and Satterthwaite) are about other seeds of these studies, "
        "not about other studies. Holm: corrected for all rows.",
        verdict(overall, overview.baseline),
    )
    heads = (*overview.compared, ALL, "p", "p (Holm)")
    return table_of("gains", f"Differences from {overview.baseline} over seeds", heads, rows, notes)


def _repeats(overview: Overview) -> str:
    """How many repeats the shared rows have."""
    said = []
    for name, same in zip(
        overview.compared, zip(*overview.rows.values(), strict=True), strict=True
    ):
        counts = sorted({len(row.summaries) for row in same})
        said.append(f"{name} {counts[0]}" + (f" to {counts[-1]}" if counts[1:] else ""))
    return f"Repeats of a row: {'; '.join(said)}."


def _tuned(overview: Overview) -> list[str]:
    """The shared rows whose method's settings differ between studies."""
    said = []
    for label, same in overview.rows.items():
        values = [dict(flat(row.method)) for row in same]
        paths = [
            path
            for path in dict.fromkeys(path for each in values for path in each)
            # A run of an earlier version lacks settings that were added since.
            if any(a[path] != b[path] for a in values for b in values if path in a and path in b)
        ]
        said += [f"{label} (method.{', method.'.join(paths)})"] if paths else []
    return [f"Settings that differ between studies: {'; '.join(said)}."] if said else []
