"""What the documentation says of tuned rows on real hospitals and under strong skew is so."""

import statistics
from itertools import pairwise

import pytest

from autofedavg.report.differences import differences_table
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
    assert "Four of eleven equally tuned rows beat FedAvg" in words("README.md")
    assert said in words("README.md")
    assert f"FedAvg has {ends_after_ten(rebuild)} after ten rounds." in text


def ends_after_ten(rebuild) -> str:
    runs = rebuild.results("bench-skew").row("fedavg").repeats
    tested = [run.rounds[9]["test"]["mean"] for run in runs]
    return f"{100 * statistics.fmean(tested):.2f}"


def test_three_rows_fall_behind_under_strong_skew(skew) -> None:
    text, scores = words(PAGE), ends(skew)
    below = -float(gain(skew, "median"))
    assert f"The coordinate median is {below:.2f} below it: where" in text
    assert f"The coordinate median is {below:.2f} below FedAvg there." in words(GUIDE)
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
    said = "FedExP and FedAvgM have {FedExP} and {FedAvgM}, FedAvg {FedAvg}; the others have less"
    assert said.format(**scores) in guide
    others = ("FedAdagrad", "FedAdam", "FedYogi", "IMA")
    assert all(float(scores[row]) < float(scores["FedAvg"]) for row in others)
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
    assert f"nine rows that chose 0.01 are {least:.2f} points or more below FedAvg" in text
    other = rebuild.results(REAL).row("fedavg")  # with 0.01, three seeds, on a CPU
    assert {run.config["training"]["learning_rate"] for run in other.repeats} == {0.01}
    assert {run.environment["device"] for run in other.repeats} == {"cpu"}
    mean = 100 * statistics.fmean(one.global_test_avg for one in other.summaries)
    assert f"FedAvg itself has {mean:.2f} with 0.01" in text
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
