"""What a report says in a few sentences, before the tables."""

from __future__ import annotations

from autofedavg.core.evaluation import SIGNIFICANT, Paired
from autofedavg.report.ceiling import in_brief
from autofedavg.report.differences import mean_gains, shown_p
from autofedavg.report.repeats import Results
from autofedavg.report.seed_gains import counted, seed_gains
from autofedavg.report.tables import mean_global


def in_short(results: Results) -> list[str]:
    """The study in sentences: what was compared, what came out, how sure one may be."""
    sites = ", ".join(f"{site} ({n:,} cases)" for site, n in results.sites.items())
    if results.many_sites:
        sites = f"{sum(results.sites.values()):,} cases in all"
    runs = len(list(results.runs))
    rows = f"{len(results.rows)} row{'s' * (len(results.rows) != 1)}"
    said = [f"{rows}, {runs} run{'s' * (runs != 1)}, {len(results.sites)} sites: {sites}."]
    scores = {row.label: score for row in results.rows if (score := mean_global(row)) is not None}
    if not any(repeat.tested for _, repeat in results.runs):
        return [*said, "Trials: validation scores chose among them, and nothing was tested."]
    if not scores:
        return [*said, "No run with a global model is finished yet, so there are no test scores."]
    best = max(scores, key=lambda label: scores[label])
    said.append(f"Highest average test score of a global model: {best}, {scores[best]:.2f} %.")
    said += in_brief(results)
    if results.baseline_row and (gains := seed_gains(results)):
        said.append(counted(gains, results.baseline_row.label))
    return said + _against(results, scores) + _caution(results)


def _against(results: Results, scores: dict[str, float]) -> list[str]:
    """The rows that learn their weights, against the baseline."""
    said = []
    for pairing in results.pairings.values():
        test, baseline, label = pairing.test(), results.baseline_row, pairing.row.label
        if test and baseline and pairing.row.learns:
            gaps = pairing.gaps.values()
            better, worse = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
            said.append(
                f"{label}: {scores[label]:.2f} %, {100 * test.gain:+.2f} points against "
                f"{baseline.label} ({scores[baseline.label]:.2f} %); better in {better} and worse "
                f"in {worse} of {test.n} test cases, {_verdict(test)}."
            )
    return said + _by_means(results, scores)


def _by_means(results: Results, scores: dict[str, float]) -> list[str]:
    """The same where sites disclosed means alone, so that no test compares cases."""
    baseline, rows = results.baseline_row, results.without_test
    if baseline is None:
        return []
    gains = {row.label: mean_gains(row, baseline) for row in rows if row.learns}
    return [
        f"{label}: {scores[label]:.2f} %, {100 * found[None]:+.2f} points against "
        f"{baseline.label} ({scores[baseline.label]:.2f} %); not tested over cases, for sites "
        "disclosed means alone."
        for label, found in gains.items()
        if found
    ]


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
    if len({tuple(row.whole) for row in results.rows if row.whole}) > 1:
        said.append("Rows were not run with the same seeds; see the table of runs.")
    unfinished = sum(not repeat.finished for _, repeat in results.runs)
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
    return "; ".join(f"{_several(labels)}: {far}" for far, labels in reached.items()) + "."


def _several(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= 6 else f"{len(labels)} rows"
