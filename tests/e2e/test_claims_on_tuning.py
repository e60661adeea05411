"""What the documentation says of equal tuning is what the published trials and runs say."""

import shutil
import statistics

import pytest

from autofedavg.core.evaluation import SIGNIFICANT
from autofedavg.experiment.folder import Ledger
from autofedavg.report.differences import by_seed, corrected
from autofedavg.report.seed_gains import gain_over
from autofedavg.report.tables import mean_global
from autofedavg.report.trials import best_of, trials_in
from autofedavg.studies.study_file import read_study, study_path
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


@pytest.fixture(scope="module")
def scores(rebuild):
    """Label -> global test avg of the tuned rows, in percent."""
    found = {row.label: mean_global(row) for row in rebuild.results(TUNED).rows}
    return {label: 100 * score for label, score in found.items() if score is not None}


@pytest.fixture(scope="module")
def gains(rebuild, scores):
    """Label -> difference from FedAvg over seeds."""
    tuned = rebuild.results(TUNED)
    rows = [row for row in tuned.rows if row.label in scores and row.label != "FedAvg"]
    return {row.label: gain_over([by_seed(row, tuned.baseline_row)]) for row in rows}


def test_only_whole_rows_are_published(rebuild) -> None:
    seeds = {row.name: sorted(repeat.seed for repeat in row.finished)
             for row in rebuild.results(TUNED).rows if row.finished}  # fmt: skip
    assert set(map(tuple, seeds.values())) == {(0, 1, 2)}
    missing = [run.name for run in read_study(TUNED).runs if run.name not in seeds]
    text = words("docs/reproduction.md")
    assert f"{len(seeds)} rows, seeds 0, 1 and 2" in text
    assert all(f"`{name}`" in words("results/README.md") for name in seeds)
    assert not missing or f"| {', '.join(missing)} (`{TUNED}`)" in text


def test_what_beats_fedavg_after_correction(gains, scores) -> None:
    """Counted are all rows that were planned, so that unfinished ones flatter nobody."""
    text, guide = words("docs/reproduction.md"), words("docs/which-method.md")
    planned = len(read_study(TUNED).runs) - 1
    unfinished = {f"unfinished {n}": 1.0 for n in range(planned - len(gains))}
    tests = {label: gain.interval.p for label, gain in gains.items()}
    sure = [label for label, p in corrected({**tests, **unfinished}).items() if p < SIGNIFICANT]
    assert sure == ["Coordinate median", "Trimmed mean"]
    assert scores["Coordinate median"] == scores["Trimmed mean"]
    said = f"Corrected for all {planned} planned comparisons, coordinate median and trimmed mean"
    assert f"{said} alone have p below 0.05" in text
    assert "coordinate median alone differs from FedAvg significantly" in guide


def test_rows_without_sizes_end_together(scores, rebuild) -> None:
    text, guide = words("docs/reproduction.md"), words("docs/which-method.md")
    order = sorted(scores.values())
    gap = max(range(1, len(order)), key=lambda n: (order[n] - order[n - 1]) * (order[n] > 40))
    low, high = order[:gap], order[gap:]
    assert f"{len(high)} rows end between {high[0]:.2f} and {high[-1]:.2f}" in text
    assert f"the others at {low[-1]:.2f} or below" in text
    even = scores["Multi-Krum"]
    assert f"The highest row is {high[-1] - even:.1f} points above even weights" in text
    best = max(scores, key=lambda label: scores[label])
    (ends,) = ([100 * each.global_test_avg for each in row.summaries]
               for row in rebuild.results(TUNED).rows if row.label == best)  # fmt: skip
    assert high[-1] - even < statistics.stdev(ends)  # "less than its seeds differ"
    steps = [scores[label] for label in ("FedAvgM", "FedAdagrad", "FedAdam", "FedExP", "FedYogi",
                                         "IMA")]  # fmt: skip
    said = f"end at {min(steps):.2f} to {max(steps):.2f}, FedAvg at {scores['FedAvg']:.2f}"
    assert said in guide
    assert f"median {scores['Coordinate median']:.2f}, even weights {even:.2f}, " in guide
    assert f"Auto-FedAvg {scores['Auto-FedAvg']:.2f}, FedAvg {scores['FedAvg']:.2f}, all" in guide
    said = f"weighs by size and has {scores['Geometric median']:.2f}, below FedAvg's"
    assert f"{said} {scores['FedAvg']:.2f}" in guide
    said = f"cases at the server {scores['FLTrust']:.2f}, FedAvg {scores['FedAvg']:.2f}"
    assert f"{said}, even weights {even:.2f}" in guide
    assert rebuild.named(TUNED, "fltrust").repeats[0].config["task"]["proxy"] == 8
    for seed in range(3):
        run = Ledger(published(TUNED) / "geometric-median" / f"seed-{seed}").rounds()
        assert run[-1]["alpha"][0] > 0.99  # "moves to it"


def test_fednova_is_fedavg_here() -> None:
    for seed in range(3):
        one, other = (Ledger(published(TUNED) / row / f"seed-{seed}").rounds()
                      for row in ("fedavg", "fednova"))  # fmt: skip
        for a, b in zip(one, other, strict=True):
            assert (a["loss"], a["validation"]) == (b["loss"], b["validation"])
