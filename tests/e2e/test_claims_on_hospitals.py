"""What the documentation says of the four hospitals, beyond tables, is what the runs say."""

import statistics
from collections import Counter
from itertools import combinations
from pathlib import Path

from autofedavg.core.evaluation import SIGNIFICANT, case_means, compare, summarise
from autofedavg.experiment.folder import Ledger
from autofedavg.report.differences import differences_table
from published import gains_of, half_interval, published, words

ROOT = Path(__file__).parents[2]


def test_the_four_hospitals_are_what_the_runs_say(rebuild) -> None:
    text, front = words("docs/reproduction.md"), words("README.md")
    lgg = rebuild.results("study-lgg")
    rows = [row for row in lgg.rows if row.name != "local-only"]
    others = [row for row in rows if row.name != "fedavg"]
    assert all(row.whole.keys() == {0, 1, 2} for row in lgg.rows)
    first, second, third = gains_of(lgg, "fedprox")
    assert f"stood {first:.1f} points above" in text
    assert f"{-second:.1f} and {-third:.1f} below it with the others" in text
    ends = [f"{100 * summary.global_test_avg:.1f}" for summary in lgg.row("fedavg").summaries]
    assert "FedAvg's three seeds have {}, {} and {}".format(*ends) in text
    pairs = [compare(*(case_means([one], "dice") for one in pair)).p
             for row in rows for pair in combinations(row.whole.values(), 2)]  # fmt: skip
    found = sum(p < SIGNIFICANT for p in pairs)
    assert f"gives p < 0.05 in {found} of {len(pairs)} pairs" in text
    above = [row.name for row in others if min(gains_of(lgg, row.name)) > 0]
    assert above == ["l-softmax"]  # "alone is above with all three seeds"
    gains = gains_of(lgg, "l-softmax")
    assert "({:.1f}, {:.1f} and {:.1f} points)".format(*gains) in text
    half = f"± {half_interval(gains):.1f}"
    assert f"over seeds the 95 % interval is {half}" in text
    assert f"{statistics.fmean(gains):.1f} {half} points above" in front
    low, high = (statistics.fmean(gains) + sign * half_interval(gains) for sign in (-1, 1))
    assert f"(the interval is {low:.1f} to {high:.1f}, and" in text
    under = [row.name for row in others if max(gains_of(lgg, row.name)) < 0]
    # "Even weights and three kinds of N-Softmax [...] are below with all three."
    assert under == ["fedavg-even", "n-softmax", "n-softmax-blind", "n-softmax-auto"]
    same = {(row.name, seed): compare(*(case_means([row.whole[seed]], "dice")
                                        for row in (row, lgg.row("fedavg"))))
            for row in others for seed in range(3)}  # fmt: skip
    small = {key: test.p for key, test in same.items() if test.p < SIGNIFICANT}
    assert [row for row, _ in small] == ["fedprox", "fedprox", "n-softmax-auto"]
    assert f"Of the {len(same)} comparisons of a row with FedAvg with the same seed three" in text
    table = differences_table(lgg).rows
    tests = [cell.test.p for _, cells in table for cell in cells[: len(lgg.sites)]]
    assert not any(p < SIGNIFICANT for p in tests)
    assert f"Of the {len(tests)} tests at single sites none is below five percent" in text
    most = max(abs(cells[len(lgg.sites)].value) for _, cells in table)
    assert f"the largest difference from it over all sites is {most:.2f}" in text
    own = lgg.row("local-only").summaries
    behind = [
        (row.name, site, 100 * (alone.matrix[site][site] - mine.by_site[site]))
        for row in rows
        for mine, alone in zip(row.summaries, own, strict=True)
        for site in lgg.sites
        if mine.by_site[site] <= alone.matrix[site][site]
    ]
    ((row, site, points),) = behind
    assert (row, site, round(points, 1)) == ("n-softmax-auto", "HT", 0.0)  # "is level with it"


def test_the_four_hospitals_with_a_bad_one(rebuild) -> None:
    text, front = words("docs/reproduction.md"), words("README.md")
    bad, good = rebuild.results("study-lgg-bad-site"), rebuild.results("study-lgg")
    names = ("fedavg", "fedavg-even", "n-dirichlet")
    assert [row.name for row in bad.rows] == list(names)
    assert [set(row.whole) for row in bad.rows] == [{0, 1, 2}, {0, 1}, {0, 1, 2}]
    fedavg, even, learned = (bad.row(name) for name in names)
    ends = {
        row.name: statistics.fmean(100 * s.global_test_avg for s in row.summaries)
        for row in bad.rows
    }
    before = {row: statistics.fmean(100 * s.global_test_avg for s in good.row(row).summaries)
              for row in ("fedavg", "n-dirichlet")}  # fmt: skip
    assert f"cost FedAvg {before['fedavg'] - ends['fedavg']:.1f} points (65.54" in text
    assert f"so {before['n-dirichlet'] - ends['n-dirichlet']:.1f} points are still lost" in text
    gains = gains_of(bad, "n-dirichlet")
    gain = f"{statistics.fmean(gains):.1f} ± {half_interval(gains):.1f} points above"
    assert f"With the same seed N-Dirichlet is {gain} FedAvg (p = " in text
    assert f"N-Dirichlet is {gain} it with the same seed" in text
    line = next(line for line in rebuild.tables("study-lgg-bad-site")["seeds"].splitlines()
                if line.startswith("| Auto-FedAvg-N-Dirichlet |"))  # fmt: skip
    p = line.split()[-2]
    assert f"points above FedAvg (p = {p}, corrected)" in text
    over = [100 * (one.global_test_avg - other.global_test_avg)
            for one, other in zip(learned.summaries, even.summaries, strict=False)]  # fmt: skip
    points = f"{statistics.fmean(over):.1f}"
    assert f"With the same two seeds it is {points} points above them." in text
    assert f"{gain} FedAvg (three seeds), and {points} above even weights (two seeds)" in front
    guide = words("docs/which-method.md")
    said = "N-Dirichlet {n-dirichlet:.2f}, FedAvg {fedavg:.2f}; ".format(**ends)
    assert f"{said}{points} above even weights (two seeds)" in guide
    for seed in even.whole:
        mine, theirs = (row.summaries[seed].by_site for row in (learned, even))
        assert all(mine[site] > theirs[site] for site in bad.sites)  # "at each hospital"
        cases = (case_means([row.whole[seed]], "dice") for row in (learned, even))
        assert compare(*cases).p < 0.001  # "with either seed"
    by_fold = [
        {
            (one.seed, one.fold): 100 * summarise(one.scores, row.metric).global_test_avg
            for one in row.repeats
        }
        for row in (learned, even, fedavg)
    ]
    above = [by_fold[0][key] - score for key, score in by_fold[1].items()]
    assert len(above) == 10
    assert f"ten folds that both have, by {min(above):.1f} to {max(above):.1f} points" in text
    assert by_fold[0].keys() == by_fold[2].keys()
    assert len(by_fold[2]) == 15  # "above it in each of fifteen folds"
    assert all(by_fold[0][key] > score for key, score in by_fold[2].items())
    bad_site = list(bad.sites).index("DU")
    runs = [repeat.rounds for repeat in learned.repeats]
    weights = [statistics.fmean(run[t]["alpha"][bad_site] for run in runs) for t in range(12)]
    said = f"begins with {weights[0]:.3f} and has less than 0.025 on average from round 3 to round"
    assert f"{said} 11." in text
    assert max(weights[2:11]) < 0.025
    chosen = [max(run, key=lambda line: line["validation"]["mean"]) for run in runs]
    tested = [line["alpha"][bad_site] for line in chosen]
    assert len(tested) == 15
    assert f"it is at most {max(tested):.3f}, and below 0.002 in twelve." in text
    assert sum(weight < 0.002 for weight in tested) == 12
    assert f"In the last round it is {weights[-1]:.3f};" in text


def test_the_weights_of_the_four_hospitals(rebuild) -> None:
    text = words("docs/reproduction.md")
    sites = list(rebuild.results("study-lgg").sites)
    left, chosen, top = Counter(), Counter(), Counter()
    for fold in range(5):
        for seed in range(3):
            home = published("study-lgg")
            rounds, other = (Ledger(home / row / f"fold-{fold}" / f"seed-{seed}").rounds()
                             for row in ("n-dirichlet", "n-softmax"))  # fmt: skip
            last, best = rounds[-1], max(rounds, key=lambda line: line["validation"]["mean"])
            left.update(k for k, a in zip(sites, last["alpha"], strict=True) if a < 0.002)
            chosen.update(k for k, a in zip(sites, best["alpha"], strict=True) if a < 0.002)
            if all(max(zip(line["alpha"], sites, strict=True))[1] == "FG"
                   for line in (last, other[-1])):  # fmt: skip
                top[fold] += 1
    assert (left["CS"], left["FG"], chosen["CS"], chosen["FG"]) == (9, 6, 3, 1)
    assert "in nine of its fifteen runs, and FG in six. In the models that were tested" in text
    assert "chosen by validation, it does so in three and in one." in text
    assert list(top.values()) == [2]  # "in one of them ... with two of three seeds"
