"""`autofedavg ceiling` through the command line, and as a setting of a row on any engine."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests_tiny import TINY

from autofedavg import read_study, resume, run_study
from autofedavg.core.errors import ConfigError
from autofedavg.engines.remote.server import host
from autofedavg.experiment.folder import Ledger
from autofedavg.experiment.selection import Paused
from autofedavg.report.build import build_report, report_tables
from autofedavg.report.read import read_results
from autofedavg.studies.observer import Observer
from deployed import InProcessTransport, job_of
from folders import write_study
from lookalikes import cifar10_binary

KEPT = [1, 3]
SETTINGS = ("task.scale=0.08", "keep_models=[1, 3]")
PICTURES = """
[study]
name = "pictures"
title = "Pictures"
baseline = "fedavg"

[base]
rounds = 1
select = "last"
keep_models = [1]

[base.task]
name = "cifar10"
clients = 3
root = "ROOT"

[base.training]
epochs = 1
batch_size = 16
learning_rate = 1e-3

[[run]]
name = "fedavg"
label = "FedAvg"
method = { name = "fedavg" }
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A study whose runs kept the models of two rounds; not to be written into."""
    place = tmp_path_factory.mktemp("kept")
    (place / "tiny.toml").write_text(TINY)
    only = ["fedavg", "n-dirichlet"]
    return run_study(read_study(place / "tiny.toml", SETTINGS, only=only), place / "runs")


@pytest.fixture
def copied(home, tmp_path) -> Path:
    return Path(shutil.copytree(home, tmp_path / "runs" / "tiny"))


def content(run: Path) -> dict:
    return json.loads((run / "ceiling.json").read_text())


def test_the_ceiling_of_a_study_is_printed_written_reported_and_archived(say, copied, tmp_path):
    code, out, err = say("ceiling", copied, "--steps", 3, "--workers", 1)
    assert code == 0, err
    assert "fedavg, seed-0 - round 1" in out
    for run in ("fedavg, seed-0", "n-dirichlet, seed-0"):
        for t in KEPT:
            assert re.search(rf"{run}, round {t}: (better|scaled) weights could gain", out)
    assert "Runs measured" not in out
    assert "An oracle" in out
    run = copied / "fedavg" / "seed-0"
    assert f"written: {run / 'ceiling.json'}" in err
    found = Ledger(run).ceiling()
    assert [line["t"] for line in found["rounds"]] == KEPT
    assert "What other weights could gain" in say("report", copied)[1]
    assert (found["split"], found["fit"]["steps"], found["sites"]) == (
        "test",
        3,
        ["I", "II", "III"],
    )
    for line in found["rounds"]:
        rows = line["rows"]
        own = {"local-I", "local-II", "local-III", "ensemble"}
        assert set(rows) == {"fedavg", "even", "run", "network", "layer", "scaled", *own}
        assert rows["fedavg"]["gain"] == rows["fedavg"]["margin"] == rows["run"]["gain"] == 0.0
        assert all(len(fits) == 2 for fits in line["fits"].values())
    learned = content(copied / "n-dirichlet" / "seed-0")["rounds"][-1]["rows"]
    assert learned["run"]["score"] != learned["fedavg"]["score"]

    tables = report_tables(read_results([copied]))["weights"]
    (table,) = (table for table in tables if table.name == "ceiling")
    assert [label for label, _ in table.rows] == [
        f"{label} - round {t}" for label in ("FedAvg", "Auto-FedAvg-N-Dirichlet") for t in KEPT
    ]
    report = build_report([copied], examples=False)
    (drawn,) = (f for f in report.figures["weights"] if f.figure.name == "ceiling")
    assert {item["weights"] for item in drawn.figure.data} >= {"network-wise", "ensemble"}
    assert "weights could gain" in report.page()

    code, out, err = say("archive", copied, "--out", tmp_path / "packed")
    assert code == 0, err
    packed = read_results([tmp_path / "packed" / "tiny.zip"])
    assert all(repeat.ceiling for _, repeat in packed.runs)


def put(run: Path, split: str, network: float, rounds: tuple[int, ...] = (5,)) -> None:
    """A ceiling.json with this gain of network-wise weights."""
    row = {"score": 0.5, "gain": 0.0, "margin": 0.0, "sites": {"A": 0.5, "B": 0.5, "C": 0.5}}
    rows = dict.fromkeys(("fedavg", "even", "network", "layer", "scaled"), row)
    rows["network"] = {**row, "gain": network}
    lines = [{"t": t, "rows": rows, "fits": {}} for t in rounds]
    about = {"schema": 1, "metric": "dice", "fit": {"steps": 1, "rate": 0.1}}
    found = {**about, "split": split, "sites": ["A", "B", "C"], "rounds": lines}
    (run / "ceiling.json").write_text(json.dumps(found))


def test_ceilings_of_several_splits_and_seeds_are_told_apart(say, tmp_path):
    home = write_study(tmp_path / "first", seeds=(0, 1, 2))
    for seed in (1, 2):
        put(home / "fedavg" / f"seed-{seed}", "test", 0.02)
    put(home / "fedavg" / "seed-0", "validation", 0.3)
    code, out, err = say("report", home, "--out", tmp_path / "page", "--no-examples")
    assert code == 0, err
    said = [line for line in out.splitlines() if line.startswith("FEDAVG, round 5")]
    assert len(said) == 1
    assert "could gain 2.0 ± 0.0 points" in said[0]
    assert "Runs measured: 2 of 3 (FEDAVG - round 5, test)." in out
    assert "Runs measured: 1 of 3 (FEDAVG - round 5, validation)." in out
    lines = (tmp_path / "page" / "tables" / "ceiling.csv").read_text().splitlines()
    assert lines[1].startswith('"FEDAVG - round 5, test"')
    assert lines[2].startswith('"FEDAVG - round 5, validation"')
    drawn = (tmp_path / "page" / "figures" / "ceiling.csv").read_text().splitlines()
    assert {line.split(",")[2] for line in drawn[1:]} == {"test"}
    text = (tmp_path / "page" / "index.html").read_text()
    assert "<li>FEDAVG, round 5: better weights could gain 2.0" in text


def test_a_ceiling_of_validation_cases_alone_says_so(say, tmp_path):
    home = write_study(tmp_path / "first", seeds=(0,))
    put(home / "fedavg" / "seed-0", "validation", 0.3, (5,))
    code, out, _ = say("report", home)
    assert code == 0
    assert "FEDAVG, round 5, validation cases: better weights could gain 30.0" in out
    assert "FEDAVG - round 5 " in out
    assert "Runs measured" not in out


def test_in_short_has_the_first_and_the_last_round_of_many(say, tmp_path):
    home = write_study(tmp_path / "first", seeds=(0, 1))
    for seed in (0, 1):
        put(home / "fedavg" / f"seed-{seed}", "test", 0.02, (1, 2, 3, 5))
    assert say("report", home, "--out", tmp_path / "page", "--no-examples")[0] == 0
    text = (tmp_path / "page" / "index.html").read_text()
    short, _, rest = text.partition('<table id="table-ceiling"')
    short = short.partition('<section id="scores"')[0]
    assert [t for t in (1, 2, 3, 5) if f"FEDAVG, round {t}: better" in short] == [1, 5]
    assert [t for t in (1, 2, 3, 5) if f"FEDAVG, round {t}: better" in rest] == [1, 2, 3, 5]


def test_an_archive_takes_a_ceiling_that_was_measured_later(say, copied, tmp_path):
    run = copied / "fedavg" / "seed-0"
    assert say("archive", copied, "--out", tmp_path / "packed")[0] == 0
    assert say("ceiling", run, "--steps", 1, "--rounds", 3)[0] == 0
    code, out, _ = say("archive", copied, "--out", tmp_path / "packed")
    assert (code, out.split()) == (0, [str(tmp_path / "packed" / "tiny.zip" / "fedavg" / "seed-0")])
    found = {r.config["name"]: r.ceiling for _, r in read_results([tmp_path / "packed"]).runs}
    assert found["fedavg"]["rounds"][0]["t"] == 3
    assert found["n-dirichlet"] is None


def test_workers_change_nothing_and_json_is_what_is_on_disk(say, copied):
    run = copied / "fedavg" / "seed-0"
    printed = []
    for workers in (1, 3):
        code, out, err = say(
            "ceiling", run, "--steps", 2, "--rounds", 1, "--split", "validation",
            "--workers", workers, "--threads", 1, "--json",
        )  # fmt: skip
        assert code == 0, err
        printed.append(json.loads(out))
    assert printed[0] == printed[1] == [{"run": str(run), **content(run)}]
    assert printed[0][0]["split"] == "validation"


def test_check_counts_the_models_and_gradients_of_a_fit(say, tiny):
    """Three families, two halves, 100 steps, 3 sites: a mixture down and a gradient up."""
    rows = [
        json.loads(say("check", tiny, "--set", f"ceiling={rounds}", "--json")[1])["rows"][1]
        for rounds in ("[]", "[2]", "[1,2]")
    ]
    one = 3 * 2 * 100 * 2 * 3 * rows[0]["model_bytes"]
    totals = [row["traffic"]["total"] for row in rows]
    assert [total - totals[0] for total in totals] == [0, one, 2 * one]


def test_runs_of_a_study_that_kept_no_models_are_left_out_and_named(say, copied, caplog):
    other = copied / "n-dirichlet" / "seed-0"
    for file in (other / "checkpoints").glob("kept-*"):
        file.unlink()
    code, _, err = say("ceiling", copied, "--steps", 1, "--rounds", 1, "--workers", 1)
    assert code == 0, err
    assert f"left out, for they kept no models: {other}" in caplog.text
    assert f"written: {copied / 'fedavg' / 'seed-0' / 'ceiling.json'}" in err


def test_pictures_have_a_ceiling_too(say, tmp_path):
    cifar10_binary(tmp_path / "data")
    (tmp_path / "pictures.toml").write_text(PICTURES.replace("ROOT", str(tmp_path / "data")))
    home = run_study(read_study(tmp_path / "pictures.toml"), tmp_path / "runs")
    code, _, err = say("ceiling", home, "--steps", 2)
    assert code == 0, err
    run = home / "fedavg" / "seed-0"
    rows = content(run)["rounds"][0]["rows"]
    assert all(0 <= row["score"] <= 1 for row in rows.values())
    # The run has tested the same global model on the same cases.
    tested = {group.site: column.values for group, column in Ledger(run).scores().columns("global")}
    assert len(tested) == 3
    for site, values in tested.items():
        assert rows["run"]["sites"][site] == pytest.approx(sum(values) / len(values), abs=1e-12)


class StopAfter(Observer):
    def __init__(self, t: int) -> None:
        self.t = t

    def round(self, seen) -> None:
        if seen.t == self.t and not seen.tested:
            raise Paused("enough")


@pytest.mark.parametrize("t", [1, 2])
def test_a_resumed_run_keeps_the_same_bits(home, tmp_path, t):
    (tmp_path / "tiny.toml").write_text(TINY)
    study = read_study(tmp_path / "tiny.toml", SETTINGS, only=["fedavg"])
    with pytest.raises(Paused):
        run_study(study, tmp_path / "runs", observer=StopAfter(t))
    again = resume(tmp_path / "runs" / "tiny") / "fedavg" / "seed-0" / "checkpoints"
    for name in [
        f"kept-{what}-{kept}.safetensors" for what in ("sites", "global") for kept in KEPT
    ]:
        one = load_file(home / "fedavg" / "seed-0" / "checkpoints" / name)
        two = load_file(again / name)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_job_s_ceiling_is_the_simulator_s(tiny, tmp_path, monkeypatch):
    """On a real engine sites answer with gradients and scores, behind their policy."""
    from autofedavg.experiment import oracle

    monkeypatch.setattr(oracle.Fit.model_fields["steps"], "default", 2)
    oracle.Fit.model_rebuild(force=True)
    try:
        study = read_study(tiny, ["task.scale=0.08", "rounds=2", "ceiling=[2]"])
        job = job_of(study, "fedavg")
        remote = host(job, InProcessTransport(job), tmp_path / "remote")
        run_study(read_study(tiny, ["task.scale=0.08", "rounds=2", "ceiling=[2]"], only=["fedavg"]),
                  tmp_path / "here")  # fmt: skip
    finally:
        monkeypatch.undo()
        oracle.Fit.model_rebuild(force=True)
    one, two = content(remote), content(tmp_path / "here" / "tiny" / "fedavg" / "seed-0")
    one.pop("bytes"), two.pop("bytes")
    assert one["fit"]["steps"] == 2
    assert one == two
    assert Ledger(remote).status() == "finished"


@pytest.fixture
def refused(say):
    def call(*arguments: object) -> str:
        code, _, err = say("ceiling", *arguments)
        assert code != 0
        return err

    return call


def test_runs_without_models_or_rounds_that_were_not_kept_say_which_setting(
    refused, tiny_home, home, tmp_path
):
    assert "keep_models" in refused(tiny_home)
    said = refused(home, "--rounds", "2")
    assert "no models of round 2" in said
    assert "choose from round 1, 3" in said
    assert "not a list of integers" in refused(home, "--rounds", "two")
    assert "rate" in refused(home, "--rate", "-1")
    name_one = "name a run folder or a study folder\n"
    assert f"nowhere: no such folder; {name_one}" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert f"empty: no run in this folder; {name_one}" in refused(tmp_path / "empty")


def test_unfinished_runs_archives_and_other_data_are_refused(refused, say, copied, tmp_path):
    assert say("archive", copied, "--out", tmp_path / "packed")[0] == 0
    assert "an archive holds no models" in refused(tmp_path / "packed" / "tiny.zip")
    run = copied / "fedavg" / "seed-0"
    about = json.loads((run / "environment.json").read_text())
    about["data"]["split_sha256"] = "0" * 64
    (run / "environment.json").write_text(json.dumps(about))
    assert "the splits of the data have changed" in refused(run)
    (run / "status.json").write_text('{"schema": 1, "state": "interrupted"}')
    assert "not finished, but interrupted" in refused(run)
    other = copied / "n-dirichlet" / "seed-0"
    for file in (other / "checkpoints").glob("kept-sites-1.safetensors"):
        file.write_bytes(b"broken")
    assert "cannot be read" in refused(other, "--steps", 1)
    config = other / "config.toml"
    config.write_text(config.read_text().replace('name = "synthetic"', 'name = "loaders"'))
    assert "`federate`" in refused(other)
    assert not (run / "ceiling.json").exists()
    assert not (other / "ceiling.json").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found["rounds"][0]["rows"].pop("network"),
        lambda found: found["rounds"][0]["rows"]["even"].update(gain=float("nan")),
        lambda found: found.update(rounds=[1]),
        lambda found: found.pop("split"),
        lambda found: found.update(schema=99),
    ],
    ids=["a row is missing", "not a number", "no rounds", "no split", "newer"],
)
def test_a_ceiling_that_no_run_writes_is_refused(say, copied, spoil):
    run = copied / "fedavg" / "seed-0"
    row = {"score": 0.5, "gain": 0.0, "margin": 0.0, "sites": {"I": 0.5}}
    rows = {name: dict(row) for name in ("fedavg", "even", "network", "layer", "scaled")}
    found = {
        "schema": 1, "split": "test", "metric": "dice", "fit": {"steps": 1, "rate": 0.1},
        "sites": ["I", "II", "III"], "rounds": [{"t": 1, "rows": rows, "fits": {}}],
    }  # fmt: skip
    (run / "ceiling.json").write_text(json.dumps(found))
    assert say("report", copied)[0] == 0
    spoil(found)
    (run / "ceiling.json").write_text(json.dumps(found))
    code, _, err = say("report", copied)
    assert code == 1
    assert str(run) in err


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["keep_models=[4]"], "keep_models names round 4, of rounds 1 to 3"),
        (["ceiling=[0]"], "ceiling names round 0, of rounds 1 to 3"),
        (["ceiling=[1, 1]"], "ceiling names a round twice"),
        (["keep_models=[1.5]"], "keep_models"),
        (["keep_models=1"], "keep_models"),
        (['method={name="fedma"}', "keep_models=[1]"], "no common network"),
    ],
    ids=str,
)
def test_settings_that_could_not_work_are_refused(tiny, settings, says):
    with pytest.raises(ConfigError, match=says):
        read_study(tiny, settings, only=["fedavg"])
