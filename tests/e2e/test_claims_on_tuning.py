"""What the documentation says of equal tuning is what the published trials and runs say."""

import re
import shutil
import statistics
from dataclasses import replace

import pytest

from autofedavg.experiment.folder import Ledger
from autofedavg.report.differences import differences_table
from autofedavg.report.formats import to_markdown
from autofedavg.report.seed_gains import seeds_table
from autofedavg.report.trials import best_of, trials_in
from autofedavg.studies.study_file import study_path, study_values
from autofedavg.studies.tune import tune_study
from published import gains_of, half_interval, published, words

TRIALS, TUNED = "bench-hospitals-trials", "bench-hospitals-tuned"
GOOD = "bench-good-hospitals"
TUNED_GOOD = f"{GOOD}-tuned"
REAL, SMALL = "bench-lgg-bad-site", "bench-lgg-small"
OTHERS = ("bench-middle-hospital", "bench-small-hospital")
SKEW = "bench-strong-skew"
ROWS = {
    TRIALS: 38,
    **{f"{study}-trials": 38 for study in (GOOD, *OTHERS)},
    f"{REAL}-trials": 20,
    f"{SMALL}-trials": 35,
    f"{SKEW}-trials": 11,
}


@pytest.fixture(scope="module")
def trials(rebuild):
    return trials_in(rebuild.results(TRIALS))


@pytest.mark.parametrize("study", ["bench-hospitals", GOOD, *OTHERS])
def test_the_tuned_study_is_what_the_trials_choose(study, tmp_path) -> None:
    """Nothing is run: all trials are finished, and have the settings of today's ranges."""
    trials = f"{study}-trials"
    shutil.copytree(published(trials), tmp_path / trials)
    before = {path: path.read_bytes() for path in tmp_path.rglob("rounds.jsonl")}
    place, _ = tune_study(study, tmp_path)
    assert place.read_bytes() == study_path(f"{study}-tuned").read_bytes()
    assert {path: path.read_bytes() for path in tmp_path.rglob("rounds.jsonl")} == before


@pytest.mark.parametrize("study", [REAL, SMALL, SKEW])
def test_the_tuned_rows_on_real_data_have_what_their_trials_chose(study, rebuild) -> None:
    """The data are not needed for that."""
    trials = trials_in(rebuild.results(f"{study}-trials"))
    best = {name: best_of(mine) for name, mine in trials.items()}
    tuned, plain = study_values(study_path(f"{study}-tuned")), study_values(study_path(study))
    assert [row["name"] for row in tuned["run"]] == [*best]
    written = {row["name"]: row for row in plain["run"]}
    for row in tuned["run"]:
        said = {f"training.{key}": value for key, value in row.get("training", {}).items()}
        key, _, value = best[row["name"]].changes.partition(" = ")
        if best[row["name"]].number == 1:
            assert (row["method"], said) == (written[row["name"]]["method"], {})
        else:
            assert str({**row["method"], **said}[key]) == value
    base = tuned["base"]
    assert base == {**plain["base"], "task": base["task"]}
    assert {**plain["base"]["task"], **base["task"]} == base["task"]
    validated, tested = plain["tune"].get("folds", []), tuned["study"].get("folds", [])
    # Who helped to choose is not tested.
    assert not {fold + more for fold in validated for more in (0, 1)} & {*tested}


@pytest.mark.parametrize("study", ROWS)
def test_every_method_had_as_many_trials_and_none_was_tested(study, rebuild) -> None:
    trials = trials_in(rebuild.results(study))
    assert {len(mine) for mine in trials.values()} == {4}
    assert len(trials) == ROWS[study]
    for run in published(study).rglob("seed-100"):
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
    over_even = to_markdown(seeds_table(replace(rebuild.results(TUNED), baseline="even")))
    line = next(line for line in over_even.splitlines() if line.startswith("| Auto-FedAvg |"))
    _, _, _, gain, *_, p, _ = (cell.strip() for cell in line.split("|"))
    gains = gains_of(rebuild.results(TUNED), "auto-fedavg", "even")
    assert max(gains) < 0  # "with each of five seeds"
    said = f"is {gain.strip('-')} points below even weights, with each of five seeds, but not"
    assert f"{said} significantly after correction (p = {p})" in text
    assert f"tuned Auto-FedAvg is {gain.strip('-')} below even weights, not significantly" in guide
    said = f"even weights {even}, the best of 38 rows; Auto-FedAvg {learned}, FedAvg {fedavg} (five"
    assert said in guide
    assert f"FLTrust {common['FLTrust']}, even weights {even}, FedAvg {fedavg} (five" in guide


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
    assert "even weights under another name, and none beats them" in guide
    assert "and none beats even weights." in words("README.md")
    front = words("README.md")
    assert "sixteen of 36 rows beat FedAvg after correction. Several of them are even" in front


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


def test_where_all_sites_are_good_no_tuned_row_beats_fedavg(rebuild) -> None:
    text, guide = words("docs/reproduction.md"), words("docs/which-method.md")
    results = rebuild.results(TUNED_GOOD)
    assert len(results.rows) == 38
    assert all(set(row.whole) == set(range(5)) for row in results.rows)
    table = rebuild.tables(TUNED_GOOD)["seeds"]
    above, below = corrected(table, "FedAvg")
    assert (above, below) == (["none"], ["q-FedAvg"])
    assert "equally tuned rows as well, 36 on generated hospitals and 33 on real ones" in guide
    assert "none of 36 equally tuned rows beats FedAvg" in words("README.md")
    ends = {
        row.label: 100 * statistics.fmean(summary.global_test_avg for summary in row.summaries)
        for row in results.rows if row.name != "local-only"
    }  # fmt: skip
    top = max(ends, key=lambda label: ends[label])
    assert f"The highest row, {top}, has {ends[top]:.2f}, which is" in text
    line = next(line.split("|") for line in table.splitlines() if line.startswith(f"| {top} |"))
    gain, low, high = (cell.strip() for cell in line[3:6])
    assert f"which is {gain} with an interval of {low} to {high}." in text
    said = "FedAvg has {FedAvg:.2f}. The highest"
    assert said.format(**ends) in text
    said = "Even weights have {Even weights:.2f} and Auto-FedAvg {Auto-FedAvg:.2f}. With"
    assert said.format(**ends) in text
    own = [100 * summary.personal_avg for summary in results.row("ditto").summaries]
    common = [100 * summary.global_test_avg for summary in results.row("fedavg").summaries]
    gains = [one - other for one, other in zip(own, common, strict=True)]
    said = (
        f"common model by {statistics.fmean(gains):.1f} ± {half_interval(gains):.1f} points. With "
    )
    assert said in text
    assert min(gains) < 0 < min(gains[:3])  # "With three seeds they were above it with each."
    said = "personal models have {:.2f} where FedAvg's common model has {:.2f}, a difference within"
    assert said.format(statistics.fmean(own), statistics.fmean(common)) in guide


def test_on_real_scans_rules_find_the_bad_hospital_and_gain_little(rebuild) -> None:
    text, guide, tuned = (
        words("docs/reproduction.md"),
        words("docs/which-method.md"),
        f"{REAL}-tuned",
    )
    results = rebuild.results(tuned)
    assert all(set(row.whole) == {0, 1, 2} for row in results.rows)
    table = rebuild.tables(tuned)["seeds"]
    assert corrected(table, "FedAvg") == (["none"], ["none"])
    assert "No row differs from FedAvg over seeds after correction** (Holm, 19 rows)." in text
    over_cases = {
        name: cells[len(results.sites)] for name, cells in differences_table(results).rows
    }
    sure = {name: 19 * cell.test.p for name, cell in over_cases.items() if cell.test.p * 19 < 0.05}
    (below,) = sure  # the smallest p of nineteen
    said = f"the test cases {below} is {-over_cases[below].value:.2f} below it (p = "
    assert f"{said}{sure[below]:.3f}, corrected)" in text
    assert f"Over cases {below} is {-over_cases[below].value:.2f} below it" in guide
    ends = {row.label: 100 * statistics.fmean(s.global_test_avg for s in row.summaries)
            for row in results.rows}  # fmt: skip
    order = sorted(ends, key=lambda label: -ends[label])
    assert order[:5] == ["FedAWA", "FedExP", "GA", "FedCostWAvg", "Auto-FedAvg"]
    line = next(line.split("|") for line in table.splitlines() if line.startswith("| FedAWA |"))
    gain, low, high = (cell.strip() for cell in line[3:6])
    said = (
        "FedAvg has {FedAvg:.2f} and even weights {Even weights:.2f}. The highest row, FedAWA, has"
    )
    assert said.format(**ends) in text
    assert f"has {ends['FedAWA']:.2f}, which is {gain} with an interval of {low} to {high}" in text
    said = "FedExP has {FedExP:.2f}, GA {GA:.2f}, FedCostWAvg {FedCostWAvg:.2f} and "
    said += "Auto-FedAvg {Auto-FedAvg:.2f}."
    assert said.format(**ends) in text
    weights = {line.split("|")[1].strip(): line.split("|")[3].strip()
               for line in rebuild.tables(tuned)["weights"].splitlines()
               if line.count("0.") == 4}  # fmt: skip
    said = "Multi-Krum, robust weights and GA give DU {GA}, Auto-FedAvg {Auto-FedAvg} and "
    said += "FedAWA {FedAWA}, where"
    assert said.format(**weights) in text
    assert weights["Multi-Krum"] == weights["Robust weights"] == weights["GA"]
    assert "where sizes give it {FedAvg}. FedCE gives it {FedCE}".format(**weights) in text
    assert all(0.23 < float(weights[row]) < 0.25 for row in ("FedCostWAvg", "FedPIDAvg"))
    good = rebuild.results(SMALL).row("fedavg")
    assert set(good.whole) == {0, 1, 2}
    right = 100 * statistics.fmean(s.global_test_avg for s in good.summaries)
    assert f"same settings FedAvg has {right:.2f} (three seeds)" in text
    found = rebuild.results(f"{SMALL}-tuned").row("fedavg").summaries
    tuned_there = 100 * statistics.fmean(s.global_test_avg for s in found)
    assert f"Tuned for good hospitals it has {tuned_there:.2f} (" in text
    whole, wrong = (
        statistics.fmean(100 * s.global_test_avg for s in rebuild.named(study, "fedavg").summaries)
        for study in ("study-lgg", "study-lgg-bad-site")
    )
    said = f"cost it {right - ends['FedAvg']:.1f} points here, and {whole - wrong:.1f} in the study"
    assert said in text
    assert f"differs from FedAvg ({ends['FedAvg']:.2f}) over seeds after correction." in guide
    settings = [repeat.config for row in (good, results.row("fedavg")) for repeat in row.repeats]
    assert len({str(one["training"]) for one in settings}) == 1
    best = [best_of(mine) for mine in trials_in(rebuild.results(f"{REAL}-trials")).values()]
    assert sum(one.changes == "training.learning_rate = 0.01" for one in best) == 14
    assert max(study_values(study_path(REAL))["tune"]["common"]["training.learning_rate"]) == 0.01
