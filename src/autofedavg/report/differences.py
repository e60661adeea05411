"""Case by case against the baseline: differences, their mean and the test's p value."""

from __future__ import annotations

from collections.abc import Mapping

from autofedavg.core.evaluation import SIGNIFICANT, Paired, mean_of
from autofedavg.report.repeats import Results, Row
from autofedavg.report.tables import Cell, Table, table_of


def differences_table(results: Results) -> Table | None:
    """Mean difference per site and over sites, with p values, for every row but the baseline."""
    baseline = results.baseline_row
    if baseline is None:
        return None
    rows = []
    places, without = (*results.sites, None), results.without_test
    for row in results.rows:
        cells: list[Cell] = []
        if row.name in results.pairings:
            cells = [_cell(results.pairings[row.name].test(site)) for site in places]
        elif row in without:
            gains = mean_gains(row, baseline)
            cells = [_gain(gains.get(site)) for site in places]
        if any(cell.value is not None for cell in cells):
            rows.append((row.label, (*cells, repeats_above(row, baseline))))
    notes = []
    if results.pairings:
        notes.append(
            f"Mean over cases of a row's score minus that of {baseline.label}, in points; for all "
            "sites the mean over them. In brackets p of the Wilcoxon signed-rank test, two-sided, "
            "over the cases; scores of the repeats (seeds) that both have are averaged per case "
            "first. For all sites the test pools their cases, so a large site rules it while sites "
            'count equally in the number; "for better" or "for worse" stands where the two point '
            "apart."
        )
    if without:
        notes.append(
            f"No p for {', '.join(row.label for row in without)}: sites disclosed means alone "
            f"(exchange.disclose). The number is the mean score minus that of {baseline.label}, in "
            "points; for all sites the mean over them."
        )
    overall = {label: cells[-2].test.p for label, cells in rows if cells[-2].test}
    if len(overall) > 1:
        sure = [label for label, p in corrected(overall).items() if p < SIGNIFICANT]
        notes.append(
            f"Corrected for the {len(overall)} rows (Holm), differences over all sites with p "
            f"below {SIGNIFICANT}: {'; '.join(sure) or 'none'}."
        )
    heads = [*results.sites, "all sites", "repeats above"]
    if any(cells[-1].text for _, cells in rows):
        notes.append(
            f"Repeats above: seeds in which all sites' mean is above that of {baseline.label} with "
            "the same seed. The test over cases does not see chance in training; this does."
        )
    else:
        heads, rows = heads[:-1], [(label, cells[:-1]) for label, cells in rows]
    title = f"Differences from {baseline.label}"
    return table_of("differences", title, heads, rows, notes, turn=results.many_sites)


def mean_gains(row: Row, baseline: Row) -> dict[str | None, float]:
    """By site, a row's mean test score minus the baseline's; for None the mean over sites.

    Scores are means over the seeds that both have; where they share none, over all of each.
    """
    shared = row.whole.keys() & baseline.whole.keys()
    found: list[dict[str, float]] = []
    for each in (row, baseline):
        known = zip(each.whole, each.summaries, strict=True)
        used = [summary.by_site for seed, summary in known if seed in shared or not shared]
        sites = {site for by_site in used for site in by_site}
        found.append({k: mean_of([by[k] for by in used if k in by]) for k in sites})
    mine, others = found
    gains: dict[str | None, float] = {k: mine[k] - others[k] for k in sorted(mine.keys() & others)}
    return {**gains, None: mean_of(list(gains.values()))} if gains else {}


def _gain(gain: float | None) -> Cell:
    return Cell() if gain is None else Cell(100 * gain, text=f"{100 * gain:+.2f}")


def _cell(test: Paired | None) -> Cell:
    if test is None:
        return Cell()
    return Cell(100 * test.gain, test=test, text=f"{100 * test.gain:+.2f} ({told(test)})")


def by_seed(row: Row, baseline: Row) -> list[float]:
    """The row's global test avg minus the baseline's, in points, of every seed that both have."""
    mine, other = (dict(zip(each.whole, each.summaries, strict=True)) for each in (row, baseline))
    pairs = [(mine[s].global_test_avg, other[s].global_test_avg) for s in mine if s in other]
    return [100 * (own - its) for own, its in pairs if own is not None and its is not None]


def repeats_above(row: Row, baseline: Row) -> Cell:
    """In how many of the seeds that both have the row is ahead; nothing to say of a single one."""
    gains = by_seed(row, baseline)
    if len(gains) < 2:
        return Cell()
    above = sum(gain > 0 for gain in gains)
    return Cell(above, text=f"{above} of {len(gains)}")


def corrected(tests: Mapping[str, float]) -> dict[str, float]:
    """P values of several tests by Holm's method: how likely the least of so many is by chance.

    Example:
        >>> corrected({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    found, least = {}, 0.0
    for done, name in enumerate(sorted(tests, key=lambda name: tests[name])):
        least = max(least, min(1.0, (len(tests) - done) * tests[name]))
        found[name] = least
    return {name: found[name] for name in tests}


def told(test: Paired) -> str:
    """The test in words; its direction, where that is not the printed number's.

    Example:
        >>> told(Paired(0.011, -0.0181, 34, 1))
        'p = 0.011 for better'
    """
    agrees = test.leans == (test.gain > 0) - (test.gain < 0)
    way = "" if agrees or not test.leans else f" for {'better' if test.leans > 0 else 'worse'}"
    return f"p {shown_p(test.p)}{way}"


def shown_p(p: float) -> str:
    """A p value for people.

    Example:
        >>> shown_p(0.0312), shown_p(1e-7)
        ('= 0.031', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
