"""What a report says in a few sentences, before the tables."""

from __future__ import annotations

from autofedavg.core.evaluation import SIGNIFICANT, Paired, compare
from autofedavg.report.differences import shown_p
from autofedavg.report.figures.series import learns
from autofedavg.report.read import Results
from autofedavg.report.tables import mean_global, paired_scores


def in_short(results: Results) -> list[str]:
    """The study in sentences: what was compared, what came out, how sure one may be."""
    sites = ", ".join(f"{site} ({n:,} cases)" for site, n in results.sites.items())
    if len(results.sites) > 8:
        sites = f"{sum(results.sites.values()):,} cases in all"
    runs = sum(len(row.repeats) for row in results.rows)
    said = [
        f"{len(results.rows)} rows, {runs} run{'s' * (runs != 1)}, {len(results.sites)} sites: "
        f"{sites}."
    ]
    ranked = sorted(
        ((mean_global(row), row) for row in results.rows if mean_global(row) is not None),
        key=lambda pair: -(pair[0] or 0.0),
    )
    if not ranked:
        return [*said, "No run with a global model is finished yet, so there are no test scores."]
    score, best = ranked[0]
    said.append(f"Highest average test score of a global model: {best.label}, {score:.2f} %.")
    said += _against(results)
    said += _caution(results)
    return said


def _against(results: Results) -> list[str]:
    """The rows that learn their weights, against the baseline."""
    baseline = results.row(results.baseline)
    of_baseline = mean_global(baseline) if baseline else None
    if baseline is None or of_baseline is None:
        return []
    said = []
    for row in results.rows:
        score = mean_global(row)
        if not learns(row) or score is None or row.name == baseline.name:
            continue
        own, against = paired_scores(row, baseline)
        test = compare(own, against)
        if test is None:
            continue
        gaps = [own[key] - against[key] for key in own.keys() & against.keys()]
        better, worse = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
        said.append(
            f"{row.label}: {score:.2f} %, {100 * test.gain:+.2f} points against "
            f"{baseline.label} ({of_baseline:.2f} %); better in {better} and worse in {worse} of "
            f"{test.n} test cases, {_verdict(test)}."
        )
    return said


def _verdict(test: Paired) -> str:
    """What the test over cases says, in words."""
    if test.p >= SIGNIFICANT or not test.leans:
        return f"no significant difference (p {shown_p(test.p)})"
    way = "better" if test.leans > 0 else "worse"
    average = "lower" if test.gain < 0 else "higher"
    apart = (test.gain > 0) != (test.leans > 0)
    though = f", although the average over sites is {average}" if apart else ""
    return f"by cases significantly {way} (p {shown_p(test.p)}){though}"


def _caution(results: Results) -> list[str]:
    counts = {len(row.whole) for row in results.rows}
    said = []
    if max(counts) <= 1:
        said.append(
            "One repeat per row: the test compares cases, not trainings, and differences between "
            "rows may be those between two trainings of the same row."
        )
    elif len(counts) > 1:
        said.append("Rows have different numbers of repeats; see the notes below the table.")
    seeds = {tuple(row.whole) for row in results.rows if row.whole}
    if len(seeds) > 1:
        said.append("Rows were not run with the same seeds; see the table of runs.")
    unfinished = sum(not repeat.finished for row in results.rows for repeat in row.repeats)
    if unfinished or results.missing:
        said.append(
            f"Not complete: {unfinished} run(s) not finished, {len(results.missing)} not begun."
        )
    return said + [f"Left out: {told}." for told in results.damaged]


def how_far(results: Results) -> str:
    """The rounds that rows have reached; rows that are equally far are named together."""
    reached: dict[str, list[str]] = {}
    for row in results.rows:
        last = max((repeat.rounds[-1]["t"] for repeat in row.repeats if repeat.rounds), default=0)
        far = f"round {last} of {row.repeats[0].config.get('rounds', '?')}"
        reached.setdefault(far, []).append(row.label)
    if len(reached) == 1:
        return f"All rows: {next(iter(reached))}."
    return " ".join(
        f"{_several(labels)}: {far}{'.' if last else ';'}"
        for last, (far, labels) in zip(
            [*[False] * (len(reached) - 1), True], reached.items(), strict=True
        )
    )


def _several(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= 6 else f"{len(labels)} rows"
