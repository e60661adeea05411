"""`autofedavg tune`: equally many trials for every row, chosen by validation scores alone."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from tests_tiny import TINY

from autofedavg import cli, read_study
from autofedavg.core.errors import ConfigError
from autofedavg.experiment.folder import run_path
from autofedavg.experiment.trial_names import trial_in, validation_score
from autofedavg.experiment.trials import plain_row
from autofedavg.federation.port import Federation
from autofedavg.report.trials import Trial
from autofedavg.studies.machine import Machine
from autofedavg.studies.observer import Observer
from autofedavg.studies.study_file import (
    builtin_studies,
    changed,
    read_trials,
    study_path,
    study_values,
    write_study_json,
)
from autofedavg.studies.tune import _diverged, _moved, _tuned, tune_study

TUNE = """
[tune]
trials = 2
seeds = [100]
common = { "training.learning_rate" = [3e-2] }
"""
DITTO = """
[[run]]
name = "ditto"
label = "Ditto"
method = { name = "ditto" }
tune = { pull = [1.0, 0.01] }
"""
ROWS = ("local-only", "fedavg", "n-dirichlet", "ditto")
RATE = "training.learning_rate = 0.03"


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("study") / "tiny.toml"
    path.write_text(TUNE + TINY + DITTO)
    return path


@pytest.fixture(scope="module")
def tuned(study, tmp_path_factory):
    """The folder of all trials and the tuned study; every test score that was asked for."""
    out, asked = tmp_path_factory.mktemp("runs"), []
    plain = Federation.evaluate
    with pytest.MonkeyPatch.context() as patch:

        def evaluate(self, w, split, *args, **how):
            asked.append(split)
            return plain(self, w, split, *args, **how)

        patch.setattr(Federation, "evaluate", evaluate)
        code = cli._main(["tune", str(study), "--out", str(out), "--workers", "1"])
    assert code == 0
    return out, asked


def test_a_value_that_is_set_is_that_of_every_trial_and_of_the_tuned_study(
    study, tmp_path, caplog
) -> None:
    sets = ["--set", "rounds=1", "--set", "training.iterations=1"]
    only = ["--only", "fedavg", "--only", "ditto"]
    where = ["--out", str(tmp_path), "--workers", "1"]
    assert cli._main(["tune", str(study), *only, *sets, *where]) == 0
    runs = sorted(tmp_path.glob("tiny-trials/*/seed-100"))
    assert len(runs) == 4
    for run in runs:
        config = tomllib.loads((run / "config.toml").read_text())
        assert (config["rounds"], config["training"]["iterations"]) == (1, 1)
    for run in read_study(tmp_path / "tiny-tuned.toml").runs:
        assert (run.values()["rounds"], run.values()["training"]["iterations"]) == (1, 1)
    assert "no longer has" not in caplog.text
    assert cli._main(["tune", str(study), "--only", "fedavg", *sets, *where]) == 0
    assert "tiny-tuned.toml no longer has ditto: tune them as well" in caplog.text
    for spoilt in ("[run]\nname = 'a'\n", "run = 3\n", "run = [3]\n", "run =\n"):
        (tmp_path / "tiny-tuned.toml").write_text(spoilt)  # whatever it is, it is written anew
        assert cli._main(["tune", str(study), "--only", "fedavg", *sets, *where]) == 0
        assert [run.name for run in read_study(tmp_path / "tiny-tuned.toml").runs] == ["fedavg"]


def test_a_path_that_is_set_begins_where_the_command_is_given(tmp_path, monkeypatch) -> None:
    (tmp_path / "scans").mkdir()
    monkeypatch.chdir(tmp_path)
    raw = changed(study_values(study_path("bench-lgg")), ["task.root=scans", "rounds=3"])
    assert {row["task"]["root"] for row in raw["run"]} == {str(tmp_path / "scans")}
    assert {row["rounds"] for row in raw["run"]} == {3}
    assert "task" not in study_values(study_path("bench-lgg"))["run"][0]


def test_ranges_are_tried_from_the_value_that_is_set(study) -> None:
    plan, trials = read_trials(study, ["ditto"], ["method.pull=0.5"])
    first, second = (run.values()["method"]["pull"] for run in plan.runs)
    assert first == 0.5
    assert second in (1.0, 0.01)  # three settings, of which two are tried
    assert trials.changes["ditto"] == [{}, {"method.pull": second}]


@pytest.mark.parametrize("text", ["tune.trials=3", "tune=3", " tune . trials = 3"])
def test_ranges_cannot_be_set_for_all_rows(study, text) -> None:
    with pytest.raises(ConfigError, match=r"--set cannot change \[tune\]; edit the study"):
        read_trials(study, overrides=[text])


@pytest.mark.parametrize("part", ["study", "base", "run"])
def test_set_changes_rows_and_no_other_part_of_a_study(study, part, say) -> None:
    code, _, err = say("check", study, "--set", f"{part}.seeds=1")
    assert code == 2
    assert f"--set cannot change [{part}]" in err
    assert "did you mean" not in err


def test_every_row_has_as_many_trials_and_none_is_tested(tuned) -> None:
    out, asked = tuned
    runs = sorted(out.glob("tiny-trials/*/seed-100"))
    found = [trial_in(run.parent.name) for run in runs]
    assert sorted(found) == sorted((row, number) for row in ROWS for number in (1, 2))
    assert set(asked) == {"validation"}
    for run in runs:
        assert (run / "scores.csv").read_text() == "model,site,split,case,metric,value\n"
        assert all("test" not in line for line in lines(run))
        assert tomllib.loads((run / "config.toml").read_text())["test"] is False


def test_the_tuned_study_has_the_settings_with_the_best_validation_score(tuned) -> None:
    out, _ = tuned
    text = (out / "tiny-tuned.toml").read_text()
    raw, wanted = tomllib.loads(text), study_values(out / "tiny-tuned.toml")
    assert raw == wanted
    assert raw["study"] == {"name": "tiny-tuned", "title": "Tiny hospitals, tuned",
                            "baseline": "fedavg"}  # fmt: skip
    assert "tune" not in text.replace("tuned", "").replace("autofedavg tune", "")
    assert tuple(row["name"] for row in raw["run"]) == ROWS
    for row in raw["run"]:
        trials = [out / f"tiny-trials/{row['name']}.trial-{n}/seed-100" for n in (1, 2)]
        scores = [validation_score(lines(run), "best") or 0.0 for run in trials]
        best = scores.index(max(scores))
        config = tomllib.loads((trials[best] / "config.toml").read_text())
        assert f"trial {best + 1}, validation {100 * scores[best]:.2f}" in text
        given = row.get("training", {}).get("learning_rate", 3e-3)
        assert config["training"]["learning_rate"] == given
        assert config["method"].items() >= row["method"].items()
    assert len(read_study(out / "tiny-tuned.toml").runs) == len(ROWS)


def test_personal_rows_are_chosen_by_their_personal_models(tuned) -> None:
    """Ditto's global model is FedAvg's whatever its pull: it could not choose."""
    out, _ = tuned
    first, second = (lines(out / f"tiny-trials/ditto.trial-{n}/seed-100") for n in (1, 2))
    assert [line["validation"] for line in first] == [line["validation"] for line in second]
    assert validation_score(first, "best") != validation_score(second, "best")


def test_the_same_command_finds_finished_trials_and_prints_the_table(tuned, study, say) -> None:
    out, _ = tuned
    before = (out / "tiny-tuned.toml").read_bytes()
    times = {path: path.stat().st_mtime_ns for path in out.glob("tiny-trials/*/*/rounds.jsonl")}
    code, printed, _ = say("tune", study, "--out", out)
    assert code == 0
    assert (out / "tiny-tuned.toml").read_bytes() == before
    assert times == {path: path.stat().st_mtime_ns for path in times}
    assert "Every row has 2 trials." in printed
    assert printed.endswith(f"tuned study: {out / 'tiny-tuned.toml'}\n")
    for label in ("Local only", "FedAvg", "Auto-FedAvg-N-Dirichlet", "Ditto"):
        line = next(line for line in printed.splitlines() if line.startswith(f"{label} "))
        assert line.removeprefix(label).split()[0] == "2"
    code, printed, _ = say("tune", study, "--out", out, "--json")
    assert json.loads(printed) == {"study": str(out / "tiny-tuned.toml")}


def test_a_reader_of_the_archive_can_count_the_trials(tuned, tmp_path, say) -> None:
    out, _ = tuned
    assert say("archive", out / "tiny-trials", "--out", tmp_path)[0] == 0
    code, printed, _ = say("report", tmp_path / "tiny-trials.zip", "--json")
    assert code == 0
    tables = {table["name"]: table for table in json.loads(printed)}
    assert "scores" not in tables
    counted = [row["columns"]["trials"]["value"] for row in tables["trials"]["rows"]]
    assert counted == [2] * len(ROWS)
    code, printed, _ = say("report", tmp_path / "tiny-trials.zip", "--out", tmp_path / "page")
    assert code == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "nothing was tested" in page
    assert "no pictures: trials are not tested" in page
    assert "Scores of every case" not in page
    assert (tmp_path / "page/tables/trials.csv").exists()


def test_a_killed_tuning_continues_with_the_same_bits(tuned, study, tmp_path) -> None:
    out, _ = tuned
    rows = ("fedavg",)

    class Killed(Observer):
        seen = 0

        def round(self, seen) -> None:
            Killed.seen += 1
            if Killed.seen == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_study(study, tmp_path, observer=Killed(), only=rows)
    assert not (tmp_path / "tiny-tuned.toml").exists()
    place, _ = tune_study(study, tmp_path, only=rows)
    (row,) = study_values(place)["run"]
    whole = next(r for r in study_values(out / "tiny-tuned.toml")["run"] if r["name"] == "fedavg")
    assert row == whole
    for number in (1, 2):
        run = f"tiny-trials/fedavg.trial-{number}/seed-100"
        mine, theirs = (
            [line["validation"] for line in lines(home / run)] for home in (tmp_path, out)
        )
        assert mine == theirs


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.process)])
def test_a_trial_that_diverges_counts_and_is_not_chosen(study, tmp_path, say, at_once) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(study.read_text().replace("[3e-2]", "[1e30]"))
    written = []
    for _ in range(2):
        code, printed, _ = say(
            "tune", path, "--only", "fedavg", "--out", tmp_path, "--at-once", at_once
        )
        assert code == 0
        assert "FedAvg, trial 2: no score: not finished, or training failed." in printed
        run = tmp_path / "tiny-trials" / "fedavg.trial-2" / "seed-100"
        written.append((run / "status.json").stat().st_mtime_ns)
    assert written[0] == written[1]  # the second time it was not run again
    assert "# as written: trial 1, validation " in (tmp_path / "tiny-tuned.toml").read_text()
    assert say("archive", tmp_path / "tiny-trials", "--out", tmp_path / "kept")[0] == 0
    code, printed, _ = say("report", tmp_path / "kept")
    assert "Every row has 2 trials." in printed


def test_a_trial_that_diverges_with_any_of_its_seeds_is_not_run_on(study, tmp_path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(study.read_text().replace("seeds = [100]", "seeds = [100, 101]"))
    plan, _ = read_trials(path, ("fedavg",))
    run = run_path(tmp_path, "fedavg.trial-2", 101)
    run.mkdir(parents=True)
    (run / "config.toml").write_text("test = false\n")
    (run / "status.json").write_text('{"state": "failed", "kind": "Diverged", "error": "nan"}')
    assert _diverged(plan, tmp_path) == {"fedavg.trial-2"}


@pytest.mark.parametrize("failed", [False, True])
def test_trials_of_other_values_are_not_taken_for_those_of_the_study(
    study, tmp_path, say, failed
) -> None:
    """Someone tunes, changes the ranges and tunes again: one that diverged is no exception."""
    path, text = tmp_path / "tiny.toml", study.read_text()
    path.write_text(text)
    plan, _ = read_trials(path, ("fedavg",))
    home = tmp_path / plan.name
    write_study_json(home, plan, Machine().resolved())
    if failed:
        run = run_path(home, "fedavg.trial-2", 100)
        run.mkdir(parents=True)
        (run / "config.toml").write_text("test = false\n")
        (run / "status.json").write_text('{"state": "failed", "kind": "Diverged", "error": "nan"}')
    path.write_text(text.replace("[3e-2]", "[1e-2]"))
    code, _, err = say("tune", path, "--only", "fedavg", "--out", tmp_path)
    assert code == 1
    assert "row 'fedavg.trial-2' is in this study folder with other settings" in err


def test_a_row_whose_trials_all_fail_is_an_error(study, tmp_path, say) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(study.read_text().replace("[3e-2]", "[1e30]").replace("3e-3", "1e31"))
    code, _, err = say("tune", path, "--only", "fedavg", "--out", tmp_path)
    assert code == 1
    assert "no trial of this row has a validation score" in err


def test_other_failures_stop_the_tuning(study, tmp_path, monkeypatch, say) -> None:
    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Federation, "evaluate", broken)
    code, _, err = say("tune", study, "--only", "fedavg", "--out", tmp_path)
    assert code == 1
    assert "No space left" in err


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("trials = 2", "trials = 0", "tune.trials: input should be greater than or equal to 1"),
        (
            "trials = 2",
            "trials = 9",
            "than 9 trials: local-only (2), fedavg (2), n-dirichlet (2), ditto (4); add values",
        ),
        ("pull = [1.0", "pul = [1.0", "method.pul is not a setting of ditto; did you mean pull?"),
        ("0.01]", "-1.0]", "run 4 (ditto), tune: method.pull: input should be greater"),
        ("seeds = [100]", "seeds = [0]", "tune: seed 0 is also one of the study's"),
    ],
)
def test_wrong_ranges_are_named_before_anything_runs(
    study, tmp_path, say, before, after, said
) -> None:
    path = tmp_path / "tiny.toml"
    text = study.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    for verb in ("tune", "run"):
        code, _, err = say(verb, path, "--out", tmp_path / "runs")
        assert code == 2
        assert said in err
    assert say("check", path)[0] == 2
    assert not (tmp_path / "runs").exists()


def test_a_row_that_is_not_there_is_refused(study, tmp_path, say) -> None:
    code, _, err = say("tune", "demo", "--out", tmp_path)
    assert (code, "this study does not say what to try: neither it nor a row" in err) == (2, True)
    code, _, err = say("tune", study, "--only", "fedavgs", "--out", tmp_path)
    assert code == 2
    assert "did you mean fedavg?" in err


def test_relative_paths_of_a_tuned_study_lead_to_the_same_files(tmp_path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/list.csv").touch()
    task = {"name": "datalist", "datalist": "list.csv", "root": "lgg", "cache": "/fast"}
    places = (tmp_path / "studies", tmp_path / "runs")
    moved = _moved({"rounds": 1, "task": task}, {}, *places)
    assert moved == {"rounds": 1, "task": {**task, "datalist": "../studies/list.csv"}}
    row = _moved({"task": {"datalist": "list.csv"}}, task, *places)
    assert row == {"task": {"datalist": "../studies/list.csv"}}
    assert _moved({"rounds": 1}, {}, *places) == {"rounds": 1}


def test_the_example_of_the_how_to_page_has_the_trials_that_the_page_names(tmp_path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "tune.md"
    (text,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    path = tmp_path / "rates.toml"
    path.write_text(text)
    _, trials = read_trials(path)
    rates = [{"training.learning_rate": rate} for rate in (1e-2, 1e-3, 6e-3)]
    momenta = [{"method.momentum": momentum} for momentum in (0.6, 0.3)]
    assert trials.changes == {"fedavg": [{}, *rates], "fedavgm": [{}, *momenta, rates[0]]}
    path.write_text(text.replace("[1e-2, 1e-3, 6e-3]", "[3e-3]"))
    (error,) = re.findall(r"```text\nerror: (.*?)\n```", page.read_text(), re.DOTALL)
    with pytest.raises(ConfigError) as refused:
        read_trials(path)
    assert str(refused.value) == error


def test_every_method_of_the_demonstration_is_tuned_where_a_site_is_bad() -> None:
    names = [
        {run.method.name for run in read_study(s).runs} for s in ("methods-demo", "bench-hospitals")
    ]
    assert names[0] == names[1]


def test_check_forecasts_no_test_and_no_model_sent_for_one(study, say) -> None:
    tested, untested = (
        json.loads(say("check", study, "--set", f"test={test}", "--json")[1])["rows"][1]
        for test in ("true", "false")
    )
    assert tested["evaluations"]["at_the_end"] == 15
    assert untested["evaluations"] == {
        **tested["evaluations"],
        "at_the_end": 0,
        "own_models": 0,
        "test_local": "none",
    }
    assert len(tested["cautions"]) == len(untested["cautions"]) + 1


@pytest.mark.parametrize(
    "name", [name for name in builtin_studies() if "tune" in study_values(study_path(name))]
)
def test_built_in_ranges_are_valid_and_leave_every_method_as_many_trials(name) -> None:
    plan, trials = read_trials(name)
    assert {len(changes) for changes in trials.changes.values()} == {4}
    assert len(plan.runs) == 4 * len(trials.changes)
    assert len(trials.changes) >= {"bench-strong-skew": 32}.get(name, 34)  # all that can run there
    # Whichever trial is chosen, the tuned study is TOML with just these values.
    path, raw = study_path(name), study_values(study_path(name))
    for number in (1, 4):
        chosen = {row: Trial(row, number, "", 0.5) for row in trials.changes}
        found = tomllib.loads(_tuned(raw, path, path.parent, trials, chosen))
        assert found["base"] == raw["base"]
        assert found["run"] == [
            plain_row(row, trials.changes[row["name"]][number - 1]) for row in raw["run"]
        ]
        assert (
            found["study"].items()
            >= {"seeds": raw["study"]["seeds"], "name": f"{name}-tuned"}.items()
        )
