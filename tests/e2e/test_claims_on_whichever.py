"""What the documentation says of all rows, whichever hospital is bad, is what the runs say."""

import statistics

import pytest

from autofedavg.report.picks import selected
from autofedavg.report.seed_gains import holm
from autofedavg.report.trials import best_of, trials_in
from published import half_interval, words

PAGE, GUIDE = "docs/reproduction.md", "docs/which-method.md"
SAFEST = 4  # rows that are named


@pytest.fixture(scope="module")
def four(rebuild):
    return rebuild.overview(rebuild.TUNED)


@pytest.fixture(scope="module")
def behind(four):
    """Row -> how far it is behind the best row, where it is most."""
    return {label: max(points) for label, points in four.behind.items()}


def test_every_row_was_run_with_five_seeds_in_all_four(rebuild) -> None:
    for study in rebuild.TOGETHER[rebuild.TUNED].values():
        results = rebuild.results(study)
        assert len(results.rows) == 38
        assert all(set(row.whole) == set(range(5)) for row in results.rows)
    assert "run with five seeds in all four" in words(PAGE)


def test_the_safest_rows(behind) -> None:
    text, guide = words(PAGE), words(GUIDE)
    first = [f"{label} ({behind[label]:.2f})" for label in list(behind)[:SAFEST]]
    said = f"{', '.join(first[:-1])} and {first[-1]}"
    assert f"The rows that are never far behind are {said}." in text
    fedavg, even, learned = (behind[row] for row in ("FedAvg", "Even weights", "Auto-FedAvg"))
    assert f"FedAvg is {fedavg:.2f} behind where the largest site is bad" in text
    assert f"even weights are {even:.2f} behind" in text
    said = f"Auto-FedAvg is at most {learned:.2f} points behind the best of 37 rows, FedAvg "
    assert f"{said}{fedavg:.2f}, even weights {even:.2f}." in guide
    assert f"With all methods tuned equally, {said}{fedavg:.2f}." in words("README.md")


def test_two_of_them_have_one_setting_in_all_four(rebuild) -> None:
    studies = [study.removesuffix("-tuned") for study in rebuild.TOGETHER[rebuild.TUNED].values()]
    chosen = {
        row: {
            best_of(trials_in(rebuild.results(f"{study}-trials"))[row]).changes for study in studies
        }
        for row in ("auto-fedavg", "fltrust", "scaffold")
    }
    assert [len(changes) for changes in chosen.values()] == [1, 1, 2]
    assert "weights = even" in chosen["scaffold"]
    assert "Auto-FedAvg and FLTrust chose the same setting in all four studies" in words(PAGE)


def test_size_or_even_by_validation(rebuild, four) -> None:
    """Of the two tuned rows the one that validates better, seed by seed."""
    found = []
    for study, best in zip(
        rebuild.TOGETHER[rebuild.TUNED].values(), map(max, four.scores), strict=True
    ):
        rows = [rebuild.results(study).row(name) for name in ("fedavg", "even")]
        scores = [
            max((selected(repeat), summary.global_test_avg) for repeat, summary in pair)[1]
            for pair in zip(
                *(zip(row.finished, row.summaries, strict=True) for row in rows), strict=True
            )
        ]
        found.append(best - 100 * statistics.fmean(scores))
    said = f"the better-validating model of the two is at most {max(found):.2f} behind"
    assert said in words(PAGE)
    assert f"The better-validating of these two: {max(found):.2f} (five seeds)" in words(GUIDE)


def by_seed_cost(four, row) -> tuple[float, float]:
    """Points below FedAvg where no site is bad, and half of the 95 % interval."""
    gains = four.gains[row][list(four.compared).index("none is bad")]
    return -statistics.fmean(gains), half_interval(gains)


def test_which_rows_beat_fedavg_over_the_four(four) -> None:
    text, guide = words(PAGE), words(GUIDE)
    sure = holm(four.overall)
    above = [row for row, p in sure.items() if p < 0.05 and four.overall[row].mean > 0]
    below = [row for row, p in sure.items() if p < 0.05 and four.overall[row].mean < 0]
    ordered = sorted(above, key=lambda row: -four.overall[row].mean)
    assert f"Over the four studies {len(above)} of 36 rows beat FedAvg after correction" in text
    listed = text.partition("beat FedAvg after correction: ")[2].partition(".")[0]
    assert set(listed.replace(" and ", ", ").split(", ")) == set(above)
    assert listed.startswith(ordered[0])
    assert f"Significantly below it are {' and '.join(below)}." in text
    where = list(four.compared).index("I, the largest")
    gains = {row: [statistics.fmean(each) for each in four.gains[row]] for row in above}
    there = [found[where] for found in gains.values()]
    rest = [gain for found in gains.values() for k, gain in enumerate(found) if k != where]
    said = f"gain {min(there):.2f} to {max(there):.2f} points, and elsewhere they are "
    assert f"{said}{-min(rest):.2f} below to {max(rest):.2f} above FedAvg" in text
    learned, even = (four.overall[row].mean for row in ("Auto-FedAvg", "Even weights"))
    said = f"On average over the four, Auto-FedAvg is {learned:+.2f} points from FedAvg and even "
    assert f"{said}weights {even:+.2f}" in text
    assert f"It is {learned:+.2f} points from FedAvg on average, even weights {even:+.2f}." in guide
    assert len(above) == 7
    assert "seven of 36 tuned rows beat FedAvg** after correction, Auto-FedAvg among" in guide
    cost = by_seed_cost(four, "Even weights"), by_seed_cost(four, "Auto-FedAvg")
    said = f"even weights cost {cost[0][0]:.2f} points, and Auto-FedAvg {cost[1][0]:.2f} with an "
    assert f"{said}interval of {cost[1][1]:.2f} either way" in guide


@pytest.mark.parametrize(
    ("which", "study"),
    [("second largest", "bench-middle-hospital"), ("smallest", "bench-small-hospital")],
)
def test_where_another_site_is_bad(which, study, rebuild) -> None:
    text, tuned = words(PAGE), rebuild.tables(f"{study}-tuned")["seeds"]
    last = next(line for line in tuned.splitlines() if "Corrected for the 36 rows" in line)
    above = last.partition("above FedAvg: ")[2].partition(", and below")[0].split("; ")
    below = last.partition("below FedAvg: ")[2].strip().rstrip(".").split("; ")
    said = f"Where the {which} is bad, {', '.join(above)} beat FedAvg after correction"
    if above == ["none"]:
        said = f"Where the {which} is bad, no row beats FedAvg after correction"
    assert f"{said}; {', '.join(below)} {'is' if len(below) == 1 else 'are'} below." in text


def test_the_weights_that_auto_fedavg_finds(rebuild, four) -> None:
    """Of the bad site, after the last round, mean over seeds."""
    found = []
    for name, study in (("I", "bench-hospitals"), ("III", "bench-middle-hospital"),
                        ("II", "bench-small-hospital")):  # fmt: skip
        results = rebuild.results(f"{study}-tuned")
        row, k = results.row("auto-fedavg"), [*results.sites].index(name)
        found.append(statistics.fmean(repeat.rounds[-1]["alpha"][k] for repeat in row.finished))
    assert max(found) < 1 / 3  # "take weight from the bad site": it started with a third
    gains = [statistics.fmean(each) for each in four.gains["Auto-FedAvg"]]
    assert "far off: {:+.2f}, {:+.2f}, {:+.2f} and {:+.2f} points.".format(*gains) in words(PAGE)
    said = "It gives the bad site {:.3f}, {:.3f} and {:.3f} of the weight where I, III and II are"
    assert said.format(*found) in words(PAGE)
