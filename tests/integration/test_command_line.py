"""The verbs through their public door: what they print, where, and their exit codes."""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from tests_tiny import TINY

from autofedavg import cli
from autofedavg.core.evaluation import summarise
from autofedavg.engines import ENGINES
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.methods import METHODS
from autofedavg.studies.study_file import builtin_studies, study_path
from autofedavg.tasks import TASKS
from folders import model_file


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory) -> Path:
    """The tiny study, run once with two seeds through the command."""
    home = tmp_path_factory.mktemp("study")
    (home / "tiny.toml").write_text(TINY)
    assert cli._main(["run", str(home / "tiny.toml"), "--out", str(home), "--seeds", "0,1"]) == 0
    return home / "tiny"


def test_run_says_where_and_writes_a_whole_run_folder(study_folder) -> None:
    folder = study_folder / "n-dirichlet" / "seed-1"
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {
        "config.toml", "environment.json", "origins.json", "rounds.jsonl", "scores.csv",
        "checkpoints", "log.txt", "status.json",
    }  # fmt: skip
    assert RunFolder(folder).status() == "finished"
    stems = {path.stem for path in (folder / "checkpoints").iterdir()}
    models = {"best-global", "best-local-I", "best-local-II", "best-local-III"}
    assert {stem.partition("@")[0] for stem in stems} == {"last-2", "last-3"} | models
    named = json.loads((folder / "checkpoints" / "last-3.json").read_text())["models"]
    assert {*named} == models
    assert {*named.values()} <= stems
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["seed"] == 1
    assert environment["data"]["cases"]["I"]["train"] == 9
    assert len(environment["data"]["split_sha256"]) == 64
    config = (folder / "config.toml").read_text()
    assert "beta0 = 6.0  # paper Sec. 4.2.1" in config
    assert "S = 2  # study" in config
    lines = RunFolder(folder).rounds()
    assert [line["t"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert sum(line["alpha"]) == pytest.approx(1)
        assert line["bytes_up"] > 0
        assert line["calls"]["update_beta"]["calls"] == 2
        assert set(line["validation"]["sites"]) == {"I", "II", "III"}


def test_scores_hold_every_test_case_of_every_model(study_folder) -> None:
    rows = RunFolder(study_folder / "fedavg" / "seed-0").scores()
    models = {row.model for row in rows}
    assert models == {"global", "local-I", "local-II", "local-III"}
    assert {row.split for row in rows} == {"test"}
    cases = json.loads((study_folder / "fedavg/seed-0/environment.json").read_text())["data"]
    per_model = sum(parts["test"] for parts in cases["cases"].values())
    dice = [row for row in rows if row.metric == "dice"]
    assert len(dice) == per_model * len(models)


def test_number_of_workers_changes_no_bit(study_folder, tmp_path, tiny, say) -> None:
    for workers in (1, 2):
        code, *_ = say(
            "run", tiny, "--only", "n-dirichlet", "--out", tmp_path / str(workers),
            "--workers", workers,
        )  # fmt: skip
        assert code == 0
    one, two = (tmp_path / str(n) / "tiny/n-dirichlet/seed-0" for n in (1, 2))
    for name in ("last-3", "best-global", "best-local-II"):
        files = [model_file(run, name, "safetensors") for run in (one, two)]
        assert files[0].name == files[1].name
        assert files[0].read_bytes() == files[1].read_bytes()
    assert (one / "scores.csv").read_bytes() == (two / "scores.csv").read_bytes()


def test_report_prints_the_papers_columns_from_the_scores(study_folder, say) -> None:
    code, out, _ = say("report", study_folder)
    assert code == 0
    head = next(line for line in out.splitlines() if "global test avg" in line)
    assert head.split("  ")[-3:] == ["global test avg", "local avg", "local gen"]
    for label in (
        "Local only - I ",
        "Local only - II ",
        "Local only - III",
        "FedAvg",
        "Auto-FedAv",
    ):
        assert label in out
    code, out, _ = say("report", study_folder, "--json")
    table, worst, weights = json.loads(out)
    assert (worst["name"], weights["name"]) == ("worst", "weights")
    rows = {row["row"]: row["columns"] for row in table["rows"]}
    runs = [RunFolder(study_folder / "fedavg" / f"seed-{seed}") for seed in (0, 1)]
    averages = [100 * summarise(run.scores(), "dice").global_test_avg for run in runs]
    shown = rows["FedAvg"]["global test avg"]
    assert shown["value"] == pytest.approx(sum(averages) / 2)
    assert shown["sd"] == pytest.approx(abs(averages[0] - averages[1]) / 2**0.5)
    assert rows["FedAvg"]["local gen"]["value"] is not None
    assert rows["Auto-FedAvg-N-Dirichlet"]["global test avg"]["test"]["n"] == 4
    assert rows["FedAvg"]["global test avg"]["test"] is None
    assert rows["Local only - II"]["local avg"]["value"] is not None
    assert rows["Local only - I"]["local avg"]["value"] is None


def test_report_writes_every_table_in_every_format(study_folder, tmp_path, say) -> None:
    code, out, err = say("report", study_folder, "--format", "markdown", "--out", tmp_path)
    assert code == 0
    assert out.startswith("**Tiny hospitals**")
    assert err == f"report written to {tmp_path / 'index.html'}\n"
    endings = ("txt", "md", "csv", "tex", "json")
    names = ("scores", "worst", "weights", "learning", "differences", "seeds", "targets", "traffic",
             "time", "speed", "runs", "machines", "data", "settings", "settings-rows")  # fmt: skip
    wanted = {f"{name}.{ending}" for name in names for ending in endings}
    assert {path.name for path in (tmp_path / "tables").iterdir()} == wanted
    assert r"\begin{tabular}{lrrrrrr}" in (tmp_path / "tables" / "scores.tex").read_text()


def test_report_says_how_far_it_has_read(study_folder, say, monkeypatch) -> None:
    from autofedavg.monitor import progress

    monkeypatch.setattr(progress, "EVERY", 0.0)
    runs = len(list(study_folder.rglob("config.toml")))
    code, out, err = say("report", study_folder)
    assert code == 0
    assert [line for line in err.splitlines() if line.startswith("reading runs")] == [
        f"reading runs: {k} of {runs}" for k in range(1, runs + 1)
    ]
    assert "reading" not in out


def test_unfinished_runs_are_named_and_not_counted(study_folder, tmp_path, say) -> None:
    import shutil

    copy = tmp_path / "tiny"
    shutil.copytree(study_folder, copy)
    RunFolder(copy / "fedavg" / "seed-1").set_status("interrupted")
    code, out, _ = say("report", copy)
    assert code == 0
    assert "FedAvg, seed 1: interrupted, not counted." in out
    assert "per row: 2 of Local only / Auto-FedAvg-N-Dirichlet; 1 of FedAvg; ±" in out


def test_existing_run_folder_is_refused_before_anything_is_touched(
    study_folder, tmp_path, say
) -> None:
    code, _, err = say("run", study_folder.parent / "tiny.toml", "--out", study_folder.parent)
    assert code == 1
    assert "this run folder exists already" in err
    assert f"autofedavg resume {study_folder}" in err
    assert "--out" in err


def test_resume_of_a_study_runs_what_is_missing(study_folder, tmp_path, say) -> None:
    import shutil

    copy = tmp_path / "tiny"
    shutil.copytree(study_folder, copy)
    shutil.rmtree(copy / "fedavg" / "seed-1")
    before = (copy / "fedavg/seed-0/rounds.jsonl").read_bytes()
    code, out, _ = say("resume", copy, "--json")
    assert code == 0
    assert json.loads(out) == {"folder": str(copy)}
    again = (copy / "fedavg/seed-1/scores.csv").read_bytes()
    assert again == (study_folder / "fedavg/seed-1/scores.csv").read_bytes()
    assert (copy / "fedavg/seed-0/rounds.jsonl").read_bytes() == before
    config = (copy / "fedavg/seed-1/config.toml").read_text()
    assert config == (study_folder / "fedavg/seed-1/config.toml").read_text()


def test_resume_with_other_threads_is_refused(study_folder, tmp_path) -> None:
    from autofedavg import Machine, resume
    from autofedavg.core.errors import ConfigError

    folder = study_folder / "fedavg" / "seed-0"
    state = (folder / "status.json").read_bytes()
    RunFolder(folder).set_status("interrupted")
    with pytest.raises(ConfigError, match="started with 1 threads, not 7"):
        resume(folder, Machine(threads=7))
    (folder / "status.json").write_bytes(state)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "no.toml"], 2, "no.toml: no such study file; name a TOML file, or one of"),
        (["run", "./demo"], 2, "./demo: no such study file; a study of that name comes with"),
        (["run", "dmeo"], 2, "'dmeo' is not a built-in study; did you mean demo?"),
        (["show", "dmeo"], 2, "'dmeo' is not a built-in study; did you mean demo?"),
        (["check", "pyproject"], 2, "'pyproject' is not a built-in study; choose from: ablation-"),
        (["run", "{tiny}", "--only", "fedavgg"], 2, "did you mean fedavg?"),
        (["run", "{tiny}", "--seeds", "a"], 2, "--seeds 'a' is not a list of integers"),
        (["run", "{tiny}", "--seeds", "1,1"], 2, "a seed is listed twice"),
        (["run", "{tiny}", "--set", "rounds"], 2, "is not key=value"),
        (["run", "{tiny}", "--set", "method.t0=0"], 2, "method.t0"),
        (["run", "{tiny}", "--engine", "flowers"], 2, "'flowers' is not a known engine"),
        (["run", "{tiny}", "--device", "cuda:99"], 2, "device: 'cuda:99' cannot be used"),
        (["run", "{tiny}", "--workers", "0"], 2, "Invalid value for '--workers'"),
        (["resume", "{tmp}"], 1, "neither a run folder nor a study folder"),
        (["report", "{tmp}/nothing"], 1, "no such folder"),
        (["report", "{tmp}"], 1, "no run in this folder"),
        (["list", "method"], 2, "did you mean methods?"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_mistakes_get_their_exit_code_and_say_what_to_do(
    tiny, tmp_path, say, arguments, code, message
) -> None:
    filled = [a.format(tiny=tiny, tmp=tmp_path) for a in arguments]
    given, out, err = say(*filled)
    assert (given, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_settings_apply_to_the_chosen_rows_alone(tiny, tmp_path, say) -> None:
    code, _, err = say(
        "run", tiny, "--only", "n-dirichlet", "--set", "method.t0=2", "--set", "rounds=1",
        "--out", tmp_path,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "t0 = 2  # study" in (tmp_path / "tiny/n-dirichlet/seed-0/config.toml").read_text()


def test_debug_shows_the_traceback(say) -> None:
    code, _, err = say("--debug", "run", "no.toml")
    assert code == 2
    assert "Traceback" in err


def test_check_prints_every_value_with_its_origin_and_the_cost(tiny, say) -> None:
    code, out, _ = say("check", tiny)
    assert code == 0
    assert "method.beta0" in out
    assert "paper Sec. 4.2.1" in out
    assert "100.0 % more for learning the weights" in out
    assert out.rstrip().endswith("the study is valid")
    code, out, _ = say("check", tiny, "--json", "--set", "rounds=7")
    rows = json.loads(out)["rows"]
    assert [row["rounds"] for row in rows] == [7, 7, 7]
    traffic = rows[2]["traffic"]
    assert traffic["total"] == 7 * (2 * traffic["fedavg_a_round"] + traffic["validation_a_round"])
    assert rows[0]["traffic"]["validation_a_round"] == 0
    K = rows[2]["sites"]
    told = {"a_round": 2 * K, "at_the_end": 2 * K + K * K, "own_models": K * K}
    assert rows[2]["evaluations"] == {**told, "test_local": "full"}
    code, out, _ = say("check", tiny, "--set", 'test_local="own"', "--set", "test_every=1")
    assert (
        f"evaluations: at most {3 * K} a round, {3 * K} after the last: {K} of sites' own models "
        "(test_local = own)"
    ) in out


def test_check_warns_of_rows_that_must_equal_fedavg(say, tmp_path, monkeypatch) -> None:
    study = tmp_path / "same.toml"
    methods = ("fedavg", "fednova", "median")
    study.write_text(
        '[study]\nname = "same"\n[base.task]\nname = "synthetic"\n[base.training]\niterations = 5\n'
        + "".join(f'[[run]]\nname = "{name}"\nmethod = {{ name = "{name}" }}\n' for name in methods)
    )

    def warned(*more) -> dict:
        code, out, _ = say("check", study, "--json", *more)
        assert code == 0
        return {row["name"]: bool(row["equals_fedavg"]) for row in json.loads(out)["rows"]}

    assert warned() == {"fedavg": False, "fednova": True, "median": False}
    epochs = ("--set", "training.epochs=1", "--set", "training.iterations=0")
    assert warned(*epochs) == dict.fromkeys(methods, False)
    monkeypatch.setattr(TASKS["synthetic"], "site_names", lambda self: ["I", "II"])
    assert warned(*epochs) == {"fedavg": False, "fednova": False, "median": True}
    out = say("check", study)[1]
    assert "  same as FedAvg: all sites take the same number of steps" in out
    assert "  same as FedAvg: the median of two models is their mean: even weights" in out


def test_check_warns_of_local_training_that_a_method_is_not_made_for(say, tmp_path) -> None:
    study = tmp_path / "steps.toml"
    head = TINY.partition("[[run]]")[0].replace('baseline = "fedavg"\n', "")
    study.write_text(f'{head}[[run]]\nname = "q"\nmethod = {{ name = "q-fedavg" }}\n')
    code, out, _ = say("check", study)
    assert code == 0
    assert "  warning: q-fedavg reads gradients from updates" in out
    for suited in ('training.optimiser="sgd"', "method.q=0"):
        code, out, _ = say("check", study, "--set", suited, "--json")
        assert code == 0
        assert json.loads(out)["rows"][0]["unsuited"] == ""
    assert say("run", study, "--set", "rounds=1", "--out", tmp_path)[0] == 0
    log = (tmp_path / "tiny" / "q" / "seed-0" / "log.txt").read_text()
    assert "WARNING" in log
    assert "q-fedavg reads gradients from updates" in log


@pytest.mark.parametrize(
    ("settings", "stay"),
    [
        ("t0 = 4", "1/K"),
        ("t0 = 4, start = 'sizes'", "n_k/n, FedAvg's"),
        ("t0 = 3, learning = 'blind'", "1/K"),  # the last sum teaches nothing
    ],
)
def test_check_warns_of_a_call_beyond_the_last_round(settings, stay, say, tmp_path) -> None:
    study = tmp_path / "rare.toml"
    head = TINY.partition("[[run]]")[0].replace('baseline = "fedavg"\n', "")
    study.write_text(
        f'{head}[[run]]\nname = "a"\nmethod = {{ name = "auto-fedavg", {settings} }}\n'
    )
    code, out, _ = say("check", study, "--set", "rounds=3")
    t0 = settings.split()[2].strip(",")
    warning = f"  warning: with t0 = {t0} no weights are learned in 3 rounds: they stay {stay}"
    assert (code, warning in out) == (0, True)
    code, out, _ = say("check", study, "--set", f"rounds={int(t0) + 1}")
    assert (code, "warning" in out) == (0, False)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (
            "name = 'fedavg', weights = 'random'",
            "with redraw = 10 no weights are drawn in 3 rounds: they stay 1/K",
        ),
        (
            "name = 'auto-fedavg', t0 = 2, reinitialise = true",
            "with t0 = 2 there is one call in 3 rounds: reinitialise does nothing",
        ),
    ],
)
def test_check_warns_of_what_too_few_rounds_leave_without_effect(method, says, say, tmp_path):
    study = tmp_path / "short.toml"
    head = TINY.partition("[[run]]")[0].replace('baseline = "fedavg"\n', "")
    study.write_text(f'{head}[[run]]\nname = "a"\nmethod = {{ {method} }}\n')
    code, out, _ = say("check", study, "--set", "rounds=3")
    assert (code, f"  warning: {says}" in out) == (0, True)
    assert "warning" not in say("check", study, "--set", "rounds=20")[1]


def test_list_gives_a_line_each(say) -> None:
    lines = say("list", "methods")[1].splitlines()
    assert [line.split()[0] for line in lines] == [*METHODS]
    fields = {told["name"]: told for told in json.loads(say("list", "methods", "--json")[1])}
    for name, line in zip(METHODS, lines, strict=True):
        about = METHODS[name].about
        assert line.split()[1:] == f"{about.family} {about.rule}".split()
        assert fields[name] == {"name": name, **asdict(about)}
    assert json.loads(say("list", "tasks", "--json")[1]) == [
        "cifar10",
        "covid",
        "datalist",
        "pancreas",
        "synthetic",
    ]
    for what, names in (("engines", ["simulator", "flare", "flower"]), ("tasks", [*TASKS])):
        lines = say("list", what)[1].splitlines()
        assert [line.split()[0] for line in lines] == names
        assert all(len(line.split()) > 4 for line in lines)
    assert json.loads(say("list", "engines", "--json")[1]) == [*ENGINES]


def test_built_in_studies_are_listed_shown_and_checked_by_name(say, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = say("list", "studies")
    assert code == 0
    listed = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert listed["demo"] == "Three synthetic hospitals"
    assert json.loads(say("list", "studies", "--json")[1]) == [*builtin_studies()]
    code, out, err = say("show", "demo")
    assert (code, err) == (0, "")
    Path("demo").write_text(out)
    assert say("check", "demo", "--json") == say("check", "./demo", "--json")
    Path("demo").write_text("not a study")
    assert say("check", "demo")[0] == 0
    assert say("check", "./demo")[0] == 2
    assert say("show", "study-lgg-bad-site")[2] == (
        f"its data list is {study_path('study-lgg').with_suffix('.csv')}: copy it, too\n"
    )


def test_help_and_import_stay_light() -> None:
    light = (
        "import sys, autofedavg; autofedavg.__all__; dir(autofedavg);"
        "assert not {'torch', 'monai', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", light], check=True)
    helped = (
        "import sys; from autofedavg import cli; code = cli._main(['--help']);"
        "assert not {'torch', 'monai', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", helped], check=True, capture_output=True, text=True
    )
    for verb in ("run", "resume", "watch", "report", "compare", "check", "data", "list"):
        assert verb in done.stdout


def test_nothing_is_drawn_when_stderr_is_not_a_terminal(study_folder, command, tmp_path) -> None:
    done = command(
        "run", study_folder.parent / "tiny.toml", "--only", "fedavg", "--out", tmp_path,
        "--set", "rounds=1",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == f"run folder: {tmp_path / 'tiny'}\n"


def test_bars_on_a_terminal_show_rounds_score_and_alpha(study_folder, tmp_path) -> None:
    import os
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "autofedavg", "run", str(study_folder.parent / "tiny.toml"),
            "--only", "n-dirichlet", "--set", "rounds=6", "--out", str(tmp_path),
        ],
        stderr=follower,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
    )  # fmt: skip
    os.close(follower)
    drawn = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        drawn += piece
    assert process.wait(timeout=30) == 0
    os.close(leader)
    text = drawn.decode(errors="replace")
    assert "Auto-FedAvg-N-Dirichlet, seed 0" in text
    assert "validation" in text
    assert "alpha I 0." in text
    assert "/6" in text


def test_the_version_is_told(say) -> None:
    from autofedavg import __version__

    assert say("--version")[:2] == (0, f"{__version__}\n")


def test_a_log_gets_a_line_now_and_then(tiny, tmp_path, say, monkeypatch) -> None:
    from autofedavg.monitor import progress

    monkeypatch.setattr(progress, "EVERY", 0.0)
    code, _, err = say("run", tiny, "--only", "fedavg", "--set", "rounds=2", "--out", tmp_path)
    assert code == 0
    assert "preparing cases: 1 of " in err
    assert "run 1 of 1, fedavg, seed 0: round 2 of 2  validation " in err
    assert "run 1 of 1 finished" in err
    assert "\x1b" not in err


@pytest.mark.process
def test_a_log_of_short_parallel_runs_gets_lines_too(tiny, tmp_path, say, monkeypatch) -> None:
    """Every look at the clock is 25 s later: a run has too few events for a minute of its own."""
    from itertools import count
    from types import SimpleNamespace

    from autofedavg.monitor import progress

    clock = count(0.0, 25.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(progress.Lines, "preparing", lambda *_: None)
    only = ("--only", "fedavg", "--seeds", "0,1,2", "--set", "rounds=1", "--set", "test=false")
    code, _, err = say("run", tiny, *only, "--at-once", 2, "--out", tmp_path)
    assert code == 0, err
    assert "of 3" in err


def test_a_setting_with_alternatives_is_told_once(say, tiny) -> None:
    code, _, err = say(
        "check", tiny, "--set", "task.pipeline.spacing=wide", "--set", "task.pipeline.roi=16"
    )  # fmt: skip
    assert code == 2
    assert err.count("task.pipeline.spacing") == 1
    assert "task.pipeline.roi: input should be a valid array (given: 16)" in err
