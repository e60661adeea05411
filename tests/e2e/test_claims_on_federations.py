"""What the documentation says of tuned rows on real hospitals and under strong skew is so."""

import statistics
from itertools import pairwise

import pytest

from autofedavg.report.differences import differences_table
from autofedavg.report.families import families
from autofedavg.report.seed_gains import holm
from autofedavg.report.trials import best_of, trials_in
from autofedavg.studies.study_file import study_path, study_values
from published import gains_of, words

PAGE, GUIDE = "docs/reproduction.md", "docs/which-method.md"
SKEW, REAL = "bench-strong-skew", "bench-lgg-small"
RATE = "training.learning_rate"


def ends(results) -> dict[str, str]:
    """Label -> mean test score over seeds, as tables have it."""
    common = [row for row in results.rows if row.name != "local-only"]
    assert all(set(row.whole) == {0, 1, 2} for row in common)
    return {
        row.label: f"{100 * statistics.fmean(one.global_test_avg for one in row.summaries):.2f}"
        for row in common
    }


def gain(results, name: str) -> str:
    return f"{statistics.fmean(gains_of(results, name)):.2f}"


@pytest.fixture(scope="module")
def skew(rebuild):
    return rebuild.results(f"{SKEW}-tuned")


@pytest.fixture(scope="module")
def real(rebuild):
    return rebuild.results(f"{REAL}-tuned")


def test_four_rows_lead_under_strong_skew(skew, rebuild) -> None:
    text, guide, scores = words(PAGE), words(GUIDE), ends(skew)
    notes = rebuild.tables(f"{SKEW}-tuned")["seeds"]
    assert "above FedAvg: FedAvgM; GA; Auto-FedAvg; FedLAW, and below FedAvg: Coordin" in notes
    assert "after correction: FedLAW, FedAvgM, Auto-FedAvg and GA." in text
    said = "FedAvg ends at {FedAvg}. FedLAW ends at {FedLAW}, FedAvgM at {FedAvgM}, Auto-FedAvg at "
    said += "{Auto-FedAvg} and GA at {GA}, in this order with every seed."
    assert said.format(**scores) in text
    order = ("fedlaw", "fedavgm", "auto-fedavg", "ga", "fedavg")
    for better, worse in pairwise(order):
        assert min(gains_of(skew, better, worse)) > 0
    assert "FedAvgM {FedAvgM}, FedAvg {FedAvg} |".format(**scores) in guide
    assert "every round: FedLAW {FedLAW}, Auto-FedAvg with S = 20 {Auto-FedAvg} |".format(
        **scores
    ) in (guide)
    law, momentum, auto, ga = (float(gain(skew, name)) for name in order[:-1])
    assert f"FedAvgM is {momentum:.2f} points above FedAvg (three seeds, p = 0.010 " in guide
    line = next(line for line in notes.splitlines() if line.startswith("| FedAvgM |"))
    assert line.endswith("| 0.010 |")
    assert f"FedLAW is {law:.2f} above and Auto-FedAvg {auto:.2f}, for 8.5 times the bytes" in guide
    said = f"FedLAW gains {law:.0f} points, FedAvgM {momentum:.0f} for FedAvg's bytes, "
    said += f"Auto-FedAvg {auto:.0f} and GA {ga:.0f}."
    assert "four of ten equally tuned rows beat FedAvg after ten (three seeds)." in words(
        "README.md"
    )
    assert said in words("README.md")
    assert f"FedAvg has {ends_after_ten(rebuild)} after ten rounds." in text


def ends_after_ten(rebuild) -> str:
    runs = rebuild.results("bench-skew").row("fedavg").repeats
    tested = [run.rounds[9]["test"]["mean"] for run in runs]
    return f"{100 * statistics.fmean(tested):.2f}"


def test_three_rows_fall_behind_under_strong_skew(skew, rebuild) -> None:
    text, scores = words(PAGE), ends(skew)
    notes = rebuild.tables(f"{SKEW}-tuned")["seeds"]
    below = -float(gain(skew, "median"))
    assert f"FedAvg**, the coordinate median (by {below:.2f}) and FedDF after correction" in text
    two = [-float(gain(skew, name)) for name in ("feddf", "fltrust")]
    said = f"median is {below:.2f} below. FedDF and FLTrust, with 500 images at the server, are "
    line = next(line for line in notes.splitlines() if line.startswith("| FLTrust |"))
    p = line.split("|")[-2].strip()
    assert f"{said}{two[0]:.2f} and {two[1]:.2f} below (p = {p} for the last, corrected)" in words(
        GUIDE
    )
    assert "and below FedAvg: Coordinate median; FedDF." in notes
    assert f"stay near chance ({scores['FedDF']} and {scores['FLTrust']})" in text
    assert sum(float(score) < float(scores["FedAvg"]) for score in scores.values()) == 3


def test_the_steps_and_ranges_that_are_compared_with_fedlaw(skew, rebuild) -> None:
    assert "It takes 40 steps a round where Auto-FedAvg takes 20" in words(PAGE)
    assert skew.row("fedlaw").repeats[0].config["method"]["S"] == 40
    assert skew.row("auto-fedavg").repeats[0].config["method"]["S"] == 20
    rows = {row["name"]: row for row in study_values(study_path(SKEW))["run"]}
    assert len(rows) == 32
    best = {
        name: best_of(mine) for name, mine in trials_in(rebuild.results(f"{SKEW}-trials")).items()
    }
    assert best["fedlaw"].changes == f"beta_rate = {max(rows['fedlaw']['tune']['beta_rate'])}"
    assert best["feddf"].changes == f"rate = {min(rows['feddf']['tune']['rate'])}"
    traffic = rebuild.tables(f"{SKEW}-tuned")["traffic"].splitlines()
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:4]]
             for line in traffic if line.count("|") > 5 and ".917" in line}  # fmt: skip
    highest = {name for name, trial in best.items() if trial.changes == f"{RATE} = 0.02"}
    assert highest == {"fedavgm", "fedcostwavg", "auto-fedavg", "fltrust"}
    assert best["ga"].changes == f"step = {max(rows['ga']['tune']['step'])}"
    trials = trials_in(rebuild.results(f"{SKEW}-trials"))
    one = 100 * best["fedavg"].score, 100 * trials["fedavgm"][0].score, 100 * best["fedavgm"].score
    said = "validates at {:.2f}, FedAvgM validates at {:.2f}; with twice that rate at {:.2f}."
    assert said.format(*one) in words(PAGE)
    assert len(families(skew)) == 7  # "from seven of its nine families"
    train, learn = map(float, cells["FedLAW"])
    assert f"{1 + learn / train:.1f}" == "8.5"
    assert cells["FedAvgM"] == cells["FedAvg"]


def test_no_tuned_row_beats_fedavg_on_good_real_hospitals(real, rebuild) -> None:
    text, guide, scores = words(PAGE), words(GUIDE), ends(real)
    notes = rebuild.tables(f"{REAL}-tuned")["seeds"]
    assert "Corrected for the 33 rows (Holm)" in notes
    assert "above FedAvg: none, and below FedAvg: q-FedAvg." in notes
    assert len(scores) == 34
    assert sorted(scores, key=lambda label: -float(scores[label]))[:2] == ["FedExP", "FedAvgM"]
    said = "are FedExP with {FedExP} and FedAvgM with {FedAvgM}, where FedAvg has {FedAvg}."
    assert said.format(**scores) in text
    assert "Auto-FedAvg has {Auto-FedAvg}, even weights {Even weights}.".format(**scores) in text
    said = (
        "FedExP and FedAvgM are +{} and +{} points from FedAvg. They are above it with every seed"
    )
    assert said.format(gain(real, "fedexp"), gain(real, "fedavgm")) in guide
    adaptive = sorted(
        -float(gain(real, row)) for row in ("fedadagrad", "ima", "fedadam", "fedyogi")
    )
    assert f"FedYogi are {adaptive[0]:.2f} to {adaptive[-1]:.2f} below" in guide
    line = next(line for line in notes.splitlines() if line.startswith("| FedExP |"))
    p = line.split("|")[-2].strip()
    said = "FedAvg {FedAvg}, the best of 33 other rows {FedExP} (p ".format(**scores)
    assert f"{said}{p} after Holm's correction)" in guide
    assert all(min(gains_of(real, row)) > 0 for row in ("fedexp", "fedavgm"))
    over_cases = {row: cells[len(real.sites)] for row, cells in differences_table(real).rows}
    above = {row for row, cell in over_cases.items() if cell.value > 0 and cell.test.p * 33 < 0.05}
    assert above == {"FedExP", "FedAvgM"}
    assert all(over_cases[row].test.p * 33 < 0.001 for row in above)
    assert f"**q-FedAvg ({scores['q-FedAvg']}) was made for SGD.**" in text
    assert "On the real ones, with a small network, none of 33 does (three seeds)" in words(
        "README.md"
    )


def test_the_learning_rate_matters_more_than_the_rule(real, rebuild) -> None:
    trials = trials_in(rebuild.results(f"{REAL}-trials"))
    apart = [
        100 * (trial.score - mine[0].score)
        for mine in trials.values()
        for trial in mine
        if trial.changes == f"{RATE} = 0.01"
    ]
    assert len(apart) > 30
    text, guide = words(PAGE), words(GUIDE)
    assert f"the validation score by {statistics.fmean(apart):.1f} points on average" in text
    rates: dict[float, dict[str, float]] = {}
    for row in real.rows:
        if row.name not in ("local-only", "fedavg"):
            rate = row.repeats[0].config["training"]["learning_rate"]
            rates.setdefault(rate, {})[row.label] = float(gain(real, row.name))
    assert {rate: len(found) for rate, found in rates.items()} == {0.005: 22, 0.007: 2, 0.01: 9}
    least = -max(rates[0.01].values())
    assert f"nine rows that chose 0.01 are {least:.2f} points or more below FedAvg, which" in text
    other = rebuild.results(REAL).row("fedavg")  # with 0.01, three seeds, on a CPU
    assert {run.config["training"]["learning_rate"] for run in other.repeats} == {0.01}
    assert {run.environment["device"] for run in other.repeats} == {"cpu"}
    mean = 100 * statistics.fmean(one.global_test_avg for one in other.summaries)
    kept = 100 * statistics.fmean(one.global_test_avg for one in real.row("fedavg").summaries)
    assert f"FedAvg itself has {mean:.2f} with 0.01" in text
    assert f"which is {kept - mean:.1f} less." in text
    far = ("SCAFFOLD", "FedAdagrad", "IMA")
    near = [value for row, value in rates[0.01].items() if row not in far]
    assert len(near) == 6  # "Six of the nine are about that far below."
    assert all(abs(value + kept - mean) < 0.8 for value in near)
    assert max(rates[0.01][row] for row in far) < min(near)
    for row in ("scaffold", "fedadagrad", "ima"):
        assert trials[row][0].score < trials["fedavg"][0].score
    decision = words("docs/decisions/0070-equal-tuning.md")
    assert f"FedAvg lost {kept - mean:.1f} points, and all nine are {least:.1f} or more" in decision
    near, far = sorted(-value for value in rates[0.007].values())
    assert f"that chose 0.007 are {near:.2f} and {far:.2f} below" in text
    rest = ("q-FedAvg", "FedAdam", "FedYogi", "pFedMe")
    mine = [value for row, value in rates[0.005].items() if row not in rest]
    assert len(mine) == 18
    span = f"between {min(mine):.2f} and {max(mine):+.2f}"
    assert f"eighteen are {span}; the rest are {', '.join(rest[:-1])} and {rest[-1]}." in text
    assert f"highest rate are {least:.2f} points or more below FedAvg. Of the 22 with" in guide
    assert f"22 with FedAvg's rate, eighteen are {span}" in guide


def test_five_rows_that_are_fedavg(real, rebuild) -> None:
    scores = ends(real)
    names = {"fednova": "FedNova", "ditto": "Ditto", "fedbn": "FedBN",
             "fedavg-ft": "FedAvg, fine-tuned", "fedavg": "FedAvg"}  # fmt: skip
    trials = trials_in(rebuild.results(f"{REAL}-trials"))
    assert all(best_of(trials[name]).number == 1 for name in names)
    found = sorted(scores[label] for label in names.values())
    assert f"and end between {found[0]} and {found[-1]}:" in words(PAGE)


@pytest.fixture(scope="module")
def seven(rebuild):
    return rebuild.overview(rebuild.ALL_TUNED)


def test_ranks_over_the_tuned_studies(seven) -> None:
    text, guide, ranks = words(PAGE), words(GUIDE), seven.ranking
    assert len(seven.scores) == 7
    assert len(ranks) == 9
    assert list(ranks)[:3] == ["FedAvgM", "Auto-FedAvg", "FedLAW"]
    first, second, third = (f"{rank:.2f}" for rank in list(ranks.values())[:3])
    said = f"FedAvgM has the lowest mean rank ({first}), then Auto-FedAvg ({second}) and FedLAW "
    assert f"{said}({third}). FedAvg has {ranks['FedAvg']:.2f}." in text
    assert f"No two are a critical difference ({seven.critical:.2f}) apart." in text
    assert seven.groups == [list(ranks)]
    last = list(ranks)[-1]
    assert last == "Coordinate median"
    said = f"FedAvgM has a mean rank of {first}, Auto-FedAvg {second}, FedLAW {third}, FedAvg "
    said += f"{ranks['FedAvg']:.2f}, and the coordinate median {ranks[last]:.2f}."
    assert said in guide
    assert f"by the critical difference ({seven.critical:.2f})." in guide


def test_what_a_wrong_choice_may_cost(seven) -> None:
    text, guide = words(PAGE), words(GUIDE)
    places = list(seven.compared)
    skew = places.index("CIFAR-10, Dir(0.1)")
    behind = {row: max(points) for row, points in seven.behind.items()}
    law, momentum, learned, fedavg = (
        f"{behind[row]:.2f}" for row in ("FedLAW", "FedAvgM", "Auto-FedAvg", "FedAvg")
    )
    assert min(behind, key=lambda row: behind[row]) == "FedLAW"
    assert f"It is at most {law} points behind the best of these rows." in text
    points = seven.behind["FedAvgM"]
    assert places[points.index(max(points))] == "generated, I bad"
    rest = max(one for one in points if one != max(points))
    assert f"FedAvgM is at most {momentum} behind, where the largest site is bad:" in text
    assert f"Elsewhere it is at most {rest:.2f} behind." in text
    others = [row for row in behind if row not in ("FedLAW", "FedAvgM")]
    least = min(seven.behind[row][skew] for row in others)
    assert f"All others are {least:.2f} or more behind under strong skew." in text
    without = {row: max(one for k, one in enumerate(found) if k != skew)
               for row, found in seven.behind.items()}  # fmt: skip
    order = sorted(without, key=lambda row: without[row])
    assert order[:3] == ["Auto-FedAvg", "FedAWA", "FedLAW"]
    said = (
        "Without that study Auto-FedAvg is at most {:.2f} behind, FedAWA {:.2f} and FedLAW {:.2f}"
    )
    assert said.format(*(without[row] for row in order[:3])) in text
    said = f"FedLAW is at most {law} points behind the best of the nine, FedAvgM {momentum}, "
    assert f"{said}Auto-FedAvg {learned} and FedAvg {fedavg}." in guide
    said = f"strong skew Auto-FedAvg is at most {without['Auto-FedAvg']:.2f} behind."
    assert said in guide
    said = f"FedLAW is at most {law} points behind the best, FedAvgM {momentum}, FedAvg {fedavg} |"
    assert said in guide
    said = f"is at most {law} points behind the best of nine rows. FedAvgM is at most {momentum} "
    assert f"{said}behind, Auto-FedAvg {learned}, FedAvg {fedavg}." in words("README.md")


def test_who_beats_fedavg_over_the_tuned_studies(seven, rebuild) -> None:
    text, guide = words(PAGE), words(GUIDE)
    sure = holm(seven.overall)
    above = [row for row, p in sure.items() if p < 0.05 and seven.overall[row].mean > 0]
    assert len(above) == 6  # "six rows beat FedAvg after correction"
    law, learned = (seven.overall[row].mean for row in ("FedLAW", "Auto-FedAvg"))
    assert f"FedLAW by {law:.2f} points on average and Auto-FedAvg by {learned:.2f}." in text
    momentum = [statistics.fmean(gains) for gains in seven.gains["FedAvgM"]]
    (below,) = (gain for gain in momentum if gain < 0)
    assert f"above FedAvg's; in the seventh it is {-below:.2f} below." in text
    assert f"it in one study of seven, by {-below:.2f} (" in guide
    trials = trials_in(rebuild.results(f"{REAL}-trials"))
    written = [100 * trials[row][0].score for row in ("fedavgm", "fedavg")]
    assert "validation cases ({:.2f} and {:.2f}).".format(*written) in text
