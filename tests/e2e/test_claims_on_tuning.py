"""What the documentation says of equal tuning is what the published trials and runs say."""

import re
import shutil
import statistics
from dataclasses import replace

import pytest

from autofedavg.experiment.folder import Ledger
from autofedavg.report.formats import to_markdown
from autofedavg.report.seed_gains import seeds_table
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
    assert len(trials) == 38
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
    assert (len(kept), len(rates), len(best) - len(kept) - len(rates)) == (4, 19, 15)
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
    """Row -> its cells in the table of scores: three sites, global, local avg, local gen."""
    lines = [line.split("|")[1:-1] for line in rebuild.tables(TUNED)["scores"].splitlines()
             if "±" in line and line[0] == "|"]  # fmt: skip
    cells = ([re.sub(r"[*†]| ±.*", "", cell).strip() for cell in line] for line in lines)
    return {name: found for name, *found in cells}


@pytest.fixture(scope="module")
def common(scores):
    """Row -> global test avg."""
    return {row: found[3] for row, found in scores.items()}


def test_all_rows_were_run_with_five_seeds(scores) -> None:
    home = published(TUNED)
    rows = [path.name for path in home.iterdir() if path.is_dir()]
    assert len(rows) == 38
    assert all(Ledger(home / row / f"seed-{seed}").finished for row in rows for seed in range(5))
    assert len(scores) == 37 + 3  # local only has a line for every site
    assert "run with five seeds, 0 to 4" in words("docs/reproduction.md")


def test_where_the_largest_site_is_bad_no_row_beats_even_weights(common, rebuild) -> None:
    text, guide = words("docs/reproduction.md"), words("docs/which-method.md")
    fedavg, even, learned = (common[row] for row in ("FedAvg", "Even weights", "Auto-FedAvg"))
    assert even == max(common.values(), key=float)
    assert f"FedAvg by size has {fedavg}, even weights have {even}, and no row has more" in text
    near = ("FedCE", "GA", "FedCostWAvg", "FLTrust")
    said = ", ".join(f"{row} ({common[row]})" for row in near)
    assert f"{said} and others end within one point of even weights" in text
    assert all(float(even) - float(common[row]) < 1 for row in near)
    line = next(line for line in rebuild.tables(TUNED)["weights"].splitlines()
                if line.startswith("| Auto-FedAvg |"))  # fmt: skip
    bad, smallest, _ = re.findall(r"0\.\d+", line)
    assert f"Auto-FedAvg has {learned}: it gives the bad site {bad} of the weight" in text
    assert f"with six training cases, {smallest}" in text
    said = f"even weights {even}, the best of 38 rows; Auto-FedAvg {learned}, FedAvg {fedavg} (five"
    assert said in guide
    assert f"FLTrust {common['FLTrust']}, even weights {even}, FedAvg {fedavg} |" in guide


def test_which_rows_beat_fedavg_and_even_weights_after_correction(rebuild) -> None:
    text, guide = words("docs/reproduction.md"), words("docs/which-method.md")
    above, below = corrected(rebuild.tables(TUNED)["seeds"], "FedAvg")
    assert (len(above), below) == (16, ["q-FedAvg"])
    assert "Sixteen rows beat FedAvg after correction** (Holm, 36 rows)" in text
    listed = text.partition("(Holm, 36 rows): ")[2].partition(". Tested")[0].lower()
    assert all(row.lower() in listed for row in above)
    assert "sixteen of 36 tuned rows beat FedAvg after correction" in guide
    named = re.findall(r"them\. (.+?) are among the sixteen", guide)[0].replace(" and ", ", ")
    assert set(named.split(", ")) <= set(above)
    results = replace(rebuild.results(TUNED), baseline="even")
    above, below = corrected(to_markdown(seeds_table(results)), "Even weights")
    assert (above, len(below)) == (["none"], 17)
    assert "no row is above them, and 17 are below" in text
    assert "None beats even weights" in guide
    front = words("README.md")
    assert "sixteen of 36 rows beat FedAvg after correction. None beats even weights." in front


def corrected(table: str, baseline: str) -> tuple[list[str], list[str]]:
    """The rows that a table says are above and below its baseline."""
    said = rf"above {baseline}: (.+?), and below {baseline}: (.+?)\.(?:  )?$"
    ((above, below),) = re.findall(said, table, re.MULTILINE)
    return above.split("; "), below.split("; ")


def test_what_does_not_help(scores, common, rebuild) -> None:
    text, guide = words("docs/reproduction.md"), words("docs/which-method.md")
    fedavg, even, stuck = (common[row] for row in ("FedAvg", "Even weights", "q-FedAvg"))
    steps = sorted(
        common[row] for row in ("FedAvgM", "FedAdagrad", "FedAdam", "FedExP", "FedYogi", "IMA")
    )
    assert f"leave the weights as they are: {steps[0]} to {steps[-1]}" in text
    assert f"IMA, tuned, have {steps[0]} to {steps[-1]}, FedAvg {fedavg} (" in guide
    by_size, median = common["Geometric median"], common["Coordinate median"]
    assert f"The geometric median weighs by size and falls to {by_size}" in text
    assert f"coordinate median has {median}, which is a little less than even weights" in guide
    assert f"weighs by size and has {by_size}, below FedAvg's {fedavg}" in guide
    assert f"so short that it stays at {stuck}" in text
    personal = [line.split("|")[4].split("±")[0].strip(" *")
                for line in rebuild.tables(TUNED)["personal"].splitlines()[4:]
                if line.count("±") == 4]  # fmt: skip
    assert len(personal) == 6
    said = f"{min(personal)} to {max(personal)}"
    assert f"Personal models have {said} at their own sites" in text
    assert f"of even weights has {even}. Only" in text
    assert f"six personal methods have {said}, the common model of even weights {even} (" in guide
    alone = [scores[f"Local only - {site}"][k] for k, site in enumerate(("I", "II", "III"))]
    assert "I, II and III have {}, {} and {} at home".format(*alone) in text
    assert "even weights {}, {} and {}".format(*scores["Even weights"][:3]) in text
    (proxy,) = {repeat.config["task"]["proxy"]
                for repeat in rebuild.named(TRIALS, "fltrust.trial-1").repeats}  # fmt: skip
    assert proxy == 8  # "with eight cases at the server"
