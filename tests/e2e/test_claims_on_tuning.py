"""What the documentation says of equal tuning is what the published trials and runs say."""

import re
import shutil
import statistics

import pytest

from autofedavg.experiment.folder import Ledger
from autofedavg.report.trials import best_of, trials_in
from autofedavg.studies.study_file import study_path
from autofedavg.studies.tune import tune_study
from published import published, words

TRIALS, TUNED = "bench-hospitals-trials", "bench-hospitals-tuned"


@pytest.fixture(scope="module")
def trials(rebuild):
    return trials_in(rebuild.results(TRIALS))


def test_the_tuned_study_is_what_the_trials_choose(tmp_path) -> None:
    """Nothing is run: all trials are finished, and have the settings of today's ranges."""
    shutil.copytree(published(TRIALS), tmp_path / TRIALS)
    before = {path: path.read_bytes() for path in tmp_path.rglob("rounds.jsonl")}
    place, _ = tune_study("bench-hospitals", tmp_path)
    assert place.read_bytes() == study_path(TUNED).read_bytes()
    assert {path: path.read_bytes() for path in tmp_path.rglob("rounds.jsonl")} == before


def test_every_method_had_as_many_trials_and_none_was_tested(trials) -> None:
    assert {len(mine) for mine in trials.values()} == {4}
    assert len(trials) == 37
    for run in published(TRIALS).glob("*/seed-100"):
        ledger = Ledger(run)
        assert not ledger.scores()
        assert not any("test" in line for line in ledger.rounds())


def test_what_tuning_changed(trials) -> None:
    text = words("docs/reproduction.md")
    best = {mine[0].row: best_of(mine) for mine in trials.values()}
    kept = [row for row, trial in best.items() if trial.number == 1]
    assert f"keep their settings: {', '.join(kept[:-1])} and {kept[-1]}." in text
    rates = [row for row, trial in best.items() if "learning_rate" in trial.changes]
    assert (len(kept), len(rates), len(best) - len(kept) - len(rates)) == (4, 18, 15)
    gains = {mine[0].row: 100 * (best_of(mine).score - mine[0].score) for mine in trials.values()}
    assert f"validation cases is {statistics.median(gains.values()):.1f} points" in text
    most = max(gains, key=lambda row: gains[row])
    first, last = 100 * trials["pfedme"][0].score, 100 * best[most].score
    assert most == "pFedMe"
    assert f"pFedMe, from {first:.2f} to {last:.2f} with the last value of its range" in text
    chosen = {row: trial.changes for row, trial in best.items()}
    assert chosen["Multi-Krum"] == "keep = 3"
    assert chosen["SCAFFOLD"] == "weights = even"
    assert chosen["FedCostWAvg"] == "size_share = 0.0"
    # Of three models the trimmed mean leaves none out below a third: even weights, too.
    even = [trials["multi-krum"][2], trials["trimmed-mean"][1]]
    assert even[1].changes == "trim = 0.2"
    assert even[0].score == pytest.approx(even[1].score, abs=1e-9)


def test_what_the_guide_says_of_the_trials(trials, rebuild) -> None:
    text = words("docs/which-method.md")
    best = {name: f"{100 * best_of(mine).score:.2f}" for name, mine in trials.items()}
    median, learned, even, fedavg = (
        best[name] for name in ("median", "auto-fedavg", "multi-krum", "fedavg")
    )
    said = f"median {median}, Auto-FedAvg {learned}, even weights {even}, FedAvg {fedavg} |"
    assert said in text
    assert f"FLTrust {best['fltrust']}, even weights {even}, FedAvg {fedavg} |" in text
    (proxy,) = {repeat.config["task"]["proxy"]
                for repeat in rebuild.named(TRIALS, "fltrust.trial-1").repeats}  # fmt: skip
    assert proxy == 8  # "with eight cases at the server"
    assert f"coordinate median has {median} on validation cases, and even weights {even}" in text
    said = f"weighs by size and has {best['geometric-median']}, below FedAvg's {fedavg}"
    assert said in text
    assert best["geometric-median"] < fedavg
    steps = sorted(
        best[name] for name in ("fedavgm", "fedadagrad", "fedadam", "fedexp", "fedyogi", "ima")
    )
    assert f"{steps[0]} to {steps[-1]} on validation cases, FedAvg {fedavg}" in text


def test_what_the_tuned_rows_show(rebuild) -> None:
    text, guide = words("docs/reproduction.md"), words("docs/which-method.md")
    home = published(TUNED)
    rows = sorted(path.name for path in home.iterdir() if path.is_dir())
    assert f"So far {len(rows)} of the 37 rows are complete" in text
    assert all(Ledger(home / row / f"seed-{seed}").finished for row in rows for seed in range(3))
    listed = re.findall(r"\| (.+?) \|.*\| (\d+\.\d\d)†? ± ", rebuild.tables(TUNED)["scores"])
    scores = {row: float(re.sub("[*]", "", score)) for row, score in listed}
    even, fedavg, median = (scores[row] for row in ("Multi-Krum", "FedAvg", "Coordinate median"))
    assert f"Even weights (Multi-Krum) have {even:.2f}, FedAvg {fedavg:.2f}" in text
    assert (
        f"coordinate median has {median:.2f}, even weights {even:.2f} and FedAvg {fedavg:.2f}"
        in guide
    )
    steps = [
        scores[row] for row in ("FedAvgM", "FedAdagrad", "FedAdam", "FedExP", "FedYogi", "IMA")
    ]
    assert f"Server steps do not help: {min(steps):.2f} to {max(steps):.2f}" in text
    assert f"The geometric median weighs by size and falls to {min(scores.values()):.2f}" in text
    seeds = rebuild.tables(TUNED)["seeds"]
    assert "above FedAvg: Coordinate median; Trimmed mean, and below FedAvg: none" in seeds
    near = ("FedCE", "Auto-FedAvg", "Multi-Krum", "FLTrust")
    lines = [re.findall(r"[-+]?\d+\.\d+", line)
             for line in seeds.splitlines() if line[2:].split(" |")[0] in near]  # fmt: skip
    assert len(lines) == len(near)
    assert all(float(low) > 0 for _, low, *_ in lines)
    gains, holm = [float(line[0]) for line in lines], [float(line[-1]) for line in lines]
    assert f"{min(gains):.1f} to {max(gains):.1f} points above it" in text
    assert f"have p = {min(holm):.3f} to {max(holm):.3f}" in text
