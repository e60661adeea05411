"""What the documentation says of the runs on CIFAR-10, beyond tables, is what they say."""

import math
import statistics
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from autofedavg.core.evaluation import loss_ends
from autofedavg.experiment.folder import Ledger
from autofedavg.report.costs import traffic_table
from autofedavg.report.read import read_results
from autofedavg.report.tables import mean_over_layers
from published import half_interval, late_scores, published, words

ROOT = Path(__file__).parents[2]


def test_the_call_that_can_be_looked_at_alone() -> None:
    """The same models until and in round 10, averaged with even and with learned weights."""
    home = published("table1-cifar10")
    text = words("docs/reproduction.md")
    scores, parts, above, early, late, most = [], [], [], [], [], 0.0
    for seed in range(3):
        even, learned, size = (
            Ledger(home / row / f"seed-{seed}").rounds()
            for row in ("fedavg-even", "n-dirichlet", "fedavg")
        )
        above.append(100 * (learned[9]["test"]["mean"] - size[9]["test"]["mean"]))
        for one, other in zip(even[:9], learned[:9], strict=True):
            assert (one["loss"], one["test"]) == (other["loss"], other["test"])
        first, second = even[9], learned[9]
        assert first["loss"] == second["loss"]
        better = [second["test"]["sites"][k] > score for k, score in first["test"]["sites"].items()]
        parts.append(sum(better))
        scores.append(
            f"{100 * second['test']['mean']:.1f} against {100 * first['test']['mean']:.1f} %"
        )
        later = [
            100 * (mine["test"]["mean"] - other["test"]["mean"])
            for mine, other in zip(learned[19:], even[19:], strict=True)
        ]
        assert f"differ by {statistics.stdev(later):.1f} points as a rule" in text
        most = max(most, *map(abs, later))
        assert abs(statistics.fmean(later)) < 0.1  # "less than 0.1 on average"
        early.append(statistics.fmean(second["loss"].values()))
        late.append(statistics.fmean(learned[-1]["loss"].values()))
    assert f"by {math.ceil(10 * most) / 10} at most" in text
    assert f"is {min(above):.1f} to {max(above):.1f} points above FedAvg" in text
    counts = "{}, {} and {}".format(*parts)
    said = (
        f"with every seed: {', '.join(scores)}. They are better on {counts} of {len(better)} parts"
    )
    assert said in text
    means = (statistics.fmean(early), statistics.fmean(late))
    assert "is {:.3f} in round 10 and {:.3f} in the last".format(*means) in text


def test_the_first_rounds_are_what_the_runs_say() -> None:
    text = words("docs/reproduction.md")
    size, even, learned = (
        [Ledger(published("study-few-rounds") / row / f"seed-{s}").rounds() for s in range(3)]
        for row in ("fedavg", "fedavg-even", "n-dirichlet")
    )
    scores = {
        name: [[100 * line["test"]["mean"] for line in run] for run in runs]
        for name, runs in (("size", size), ("even", even), ("learned", learned))
    }
    pairs = list(zip(scores["learned"], scores["size"], scores["even"], strict=True))
    assert all(mine[t] > max(a[t], b[t]) for mine, a, b in pairs for t in range(7))
    assert not all(mine[7] > max(a[7], b[7]) for mine, a, b in pairs)
    first = [mine[0] - a[0] for mine, a, _ in pairs]
    assert f"by {min(first):.1f} to {max(first):.1f} points over FedAvg in the first round" in text
    apart = [[mine[t] - a[t] for mine, a, _ in pairs] for t in range(10)]
    halves = [half_interval(each) for each in apart]
    assert all(statistics.fmean(each) > half for each, half in zip(apart[:5], halves, strict=False))
    assert all(abs(statistics.fmean(a)) < h for a, h in zip(apart[5:], halves[5:], strict=True))
    below, half = -statistics.fmean(apart[9]), halves[9]
    assert (
        f"N-Dirichlet is {below:.1f} points below FedAvg, with a 95 % interval of ± {half:.1f}. One"
        in text
    )
    ensemble = read_results([published("table1-cifar10") / "ensemble"]).row("ensemble")
    members = ensemble.summaries[0].matrix.values()
    alone = [100 * statistics.fmean(own.values()) for own in members]
    mean, best = f"{statistics.fmean(alone):.1f}", f"{max(alone):.1f}"
    assert f"have {mean} on average over all test images, the best {best}" in text
    second = statistics.fmean(mine[1] - a[1] for mine, a, _ in pairs)
    assert f"after two rounds by {second:.0f} points" in (ROOT / "README.md").read_text()
    count = [1 / sum(a * a for a in run[0]["alpha"]) for run in learned]
    assert f"(1 / Σ alpha²) of {min(count):.1f} to {max(count):.1f} of the 16 clients" in text
    ahead = [[a[t + 1] - mine[t] for t in range(9)] for mine, a, _ in pairs]
    assert all(statistics.fmean(gains) > 0 for gains in zip(*ahead, strict=True))
    assert max(map(abs, ahead[1][3:])) < 0.4  # "within 0.4 points of each other"
    folder = published("study-few-rounds") / "n-dirichlet"
    traffic = dict(traffic_table(read_results([folder])).rows)
    extra, formula = (cell.value / 100 for cell in traffic["Auto-FedAvg-N-Dirichlet"][-2:])
    assert f"{formula} times" in text
    assert extra == pytest.approx(formula, rel=1e-3)


def test_the_same_rounds_have_the_same_bits() -> None:
    """Runs of ten rounds and of 99, made at other times with other versions."""
    short, long = (published(study) for study in ("study-few-rounds", "table1-cifar10"))
    for row in ("fedavg", "fedavg-even"):
        for seed in range(3):
            mine, other = (Ledger(home / row / f"seed-{seed}").rounds() for home in (short, long))
            for one, two in zip(mine, other[:10], strict=True):
                assert (one["loss"], one["test"]) == (two["loss"], two["test"])


def test_the_calls_of_the_other_variants() -> None:
    home = published("table1-cifar10")
    text = words("docs/reproduction.md")
    even = Ledger(home / "fedavg-even" / "seed-0").rounds()
    above, said, begins = {}, {}, []
    for name in ("n-softmax", "l-dirichlet", "l-softmax"):
        mine = Ledger(home / name / "seed-0").rounds()
        gains = [
            100 * (one["test"]["mean"] - two["test"]["mean"])
            for one, two in zip(mine, even, strict=True)
        ]
        above[name] = f"{gains[9]:.1f}"
        assert abs(statistics.fmean(gains[19:])) < 0.2
        calls = {
            line["t"]: loss_ends(line["learning_loss"])[1:] for line in mine if line["learned"]
        }
        said[name] = "from {:.3f} to {:.3f}".format(*calls[10])
        begin, end = calls[90]
        begins.append(begin)
        assert abs(end - begin) < 0.0015  # "by 0.001 at most"
    assert (
        "N-Softmax is {n-softmax} points above the row of even weights, L-Dirichlet {l-dirichlet} "
        "and L-Softmax {l-softmax}".format_map(above)
    ) in text
    assert (
        "L-Softmax lowers it {l-softmax}, L-Dirichlet {l-dirichlet} and "
        "N-Softmax {n-softmax}".format_map(said)
    ) in text
    assert f"begin at {min(begins):.3f} to {max(begins):.3f} and change it" in text


def test_which_weights_the_variants_agree_on() -> None:
    text = words("docs/reproduction.md")

    def ends(*runs: str) -> list[list[float]]:
        last = (Ledger(published("table1-cifar10") / run).rounds()[-1] for run in runs)
        return [[mean_over_layers(a) for a in line["alpha"]] for line in last]

    def between(*runs: str) -> str:
        found = [statistics.correlation(*pair) for pair in combinations(ends(*runs), 2)]
        return f"{min(found):.1f} to {max(found):.1f}"

    variants = [f"{row}/seed-0" for row in ("l-softmax", "l-dirichlet", "n-softmax", "n-dirichlet")]
    seeds = between(*(f"n-dirichlet/seed-{s}" for s in range(3)))
    assert f"of three seeds correlate with {seeds}" in text
    assert f"those of the four variants with {between(*variants)}" in text
    (sizes,) = ends("fedavg/seed-0")
    assert all(abs(statistics.correlation(mine, sizes)) < 0.25 for mine in ends(*variants))


def test_chance_in_training_is_what_the_runs_say() -> None:
    text, front = words("docs/reproduction.md"), words("README.md")
    home = published("table1-cifar10")
    learned, size = (
        [late_scores(home / row / f"seed-{seed}", 99) for seed in range(3)]
        for row in ("n-dirichlet", "fedavg")
    )
    gains = [mine - other for mine, other in zip(learned, size, strict=True)]
    half = half_interval(gains)
    below, half = f"{-statistics.fmean(gains):.1f}", f"{half:.1f}"
    assert f"is {below} points below FedAvg, with a 95 % interval of ± {half}" in text
    assert f"is {below} ± {half} points below FedAvg (three seeds, 95 % interval)" in front
    assert "its three seeds end at {:.1f}, {:.1f} and {:.1f}".format(*size) in text


def test_weights_drawn_at_random_and_matched_layers() -> None:
    text = words("docs/reproduction.md")
    home = published("table1-cifar10")
    names = ("fedavg", "fedavg-random", "n-dirichlet", "n-softmax", "l-dirichlet", "l-softmax")
    size, drawn, *learned = (late_scores(home / row / "seed-0") for row in names)
    below = size - drawn
    prox = size - late_scores(home / "fedprox" / "seed-0")
    over = [mine - size for mine in learned]
    assert (
        f"from round 20 on {below:.1f} points below FedAvg on average with the same seed. FedProx "
        f"is {prox:.1f} below it there, and the four variants are {-min(over):.1f} below to "
        f"{max(over):.1f} above" in text
    )
    second = [late_scores(home / row / "seed-1") for row in ("fedavg", "n-dirichlet")]
    assert f"N-Dirichlet, too, is {second[0] - second[1]:.1f} below FedAvg" in text
    ends = [late_scores(home / row / "seed-0", 99) for row in (*names, "fedavg-even", "fedprox")]
    seeds = [late_scores(home / "fedavg" / f"seed-{seed}", 99) for seed in range(3)]
    spread, own = (f"{max(each) - min(each):.1f}" for each in (ends, seeds))
    said = f"within {spread} points of each other with the same seed, less than FedAvg's own seeds"
    assert f"{said} ({own})" in text
    rounds = Ledger(home / "fedma" / "seed-0").rounds()
    passes = [100 * line["test"]["mean"] for line in rounds if line.get("test")]
    assert len(passes) == 11
    assert f"FedMA has {passes[0]:.1f} after its first pass" in text
    assert f"it still gains {passes[-1] - passes[-2]:.1f} points a pass" in text


def test_the_study_with_images_set_aside() -> None:
    text = words("docs/reproduction.md")
    home = published("table1-holdout")
    runs = [home / row / "seed-0" for row in ("n-dirichlet", "fedavg")]
    mine, other = (late_scores(run) for run in runs)
    last, before = (late_scores(runs[0], t) - late_scores(runs[1], t) for t in (99, 90))
    assert f"N-Dirichlet ends {last:.1f} points above FedAvg. From round 20 on it is" in text
    assert (
        f"is {mine - other:.1f} above it on average, in the last ten rounds {before:.1f}." in text
    )
    table1 = published("table1-cifar10")
    apart = [late_scores(table1 / "n-dirichlet" / f"seed-{seed}")
             - late_scores(table1 / "fedavg" / f"seed-{seed}") for seed in range(3)]  # fmt: skip
    assert "is {:.1f}, {:.1f} and {:.1f} with the three seeds".format(*apart) in text
    first, second = (Ledger(run).rounds() for run in runs)
    behind = [100 * (second[n]["test"]["mean"] - first[n]["test"]["mean"]) for n in (1, 2)]
    assert [round(each) for each in behind] == [2, 2]  # "by two points in rounds 2 and 3"
    more = [late_scores(table1 / run.parent.name / "seed-0", 99) - late_scores(run, 99)
            for run in reversed(runs)]  # fmt: skip
    assert "which end {:.1f} and {:.1f} points higher with the same seed".format(*more) in text
    calls = [loss_ends(line["learning_loss"])[1:]
             for line in Ledger(runs[0]).rounds() if line["learned"]]  # fmt: skip
    (one, two), late = (begin for begin, _ in calls[:2]), [begin for begin, _ in calls[2:]]
    begins = f"at {one:.3f} in round 10, at {two:.3f} in round 20, and at {min(late):.3f} to"
    assert f"{begins} {max(late):.3f} from round 30 on" in text
    lower = [begin - end for begin, end in calls]
    between = [abs(begin - end) for (_, end), (begin, _) in pairwise(calls[2:])]
    assert f"of one and the beginning of the next (up to {max(between):.2f})" in text
    assert sum(abs(gain) <= max(between) for gain in lower[2:]) == 6  # "mostly"
    assert "first two calls lower it by {:.3f} and {:.3f}".format(*lower[:2]) in text
    assert (len(lower[2:]), sum(gain < 0 for gain in lower[2:])) == (7, 2)
    assert max(map(abs, lower[2:])) == lower[-1]
    assert f"two raise it, and the largest change is -{lower[-1]:.3f}, in the last call" in text
