"""Runs with differential privacy: forecast, ledger, resume, report."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load_file

from autofedavg import Machine, read_study, run_study
from autofedavg.core.bank import Layout
from autofedavg.engines.remote.server import host
from autofedavg.engines.remote.site_ledger import FileLedger
from autofedavg.experiment.folder import Ledger
from autofedavg.federation.ledger import Limit
from autofedavg.studies.launch import resume
from autofedavg.studies.observer import Observer
from deployed import InProcessTransport, assert_same_run, job_of
from hospitals import build_hospitals

PRIVATE = ["privacy.train_clip=0.5", "privacy.train_noise=1.5"]
PRIVATE += ["privacy.theta_clip=0.1", "privacy.theta_noise=2.0", "privacy.delta=1e-2"]
ROW = "n-dirichlet"


def as_options(settings) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def private_run(tiny: Path, out: Path, **machine) -> Path:
    plan = read_study(tiny, PRIVATE, only=[ROW])
    return run_study(plan, out, Machine(**machine)) / ROW / "seed-0"


def only(tiny: Path) -> Path:
    """The tiny study with the one row that learns weights."""
    head = tiny.read_text().partition("[[run]]")[0].replace('baseline = "fedavg"\n', "")
    row = f'[[run]]\nname = "{ROW}"\nmethod = {{ name = "auto-fedavg", S = 2 }}\n'
    tiny.write_text(head + row)
    return tiny


def test_check_prints_what_the_run_then_spends(tiny, tmp_path, say):
    code, out, _ = say("check", only(tiny), *as_options(PRIVATE), "--json")
    assert code == 0
    (row,) = json.loads(out)["rows"]
    spent = {site: budget["epsilon"] for site, budget in row["privacy"].items()}
    assert len(spent) == 3
    lines = Ledger(private_run(tiny, tmp_path)).rounds()
    assert lines[-1]["epsilon"] == pytest.approx(spent, rel=1e-12)
    assert all(a["epsilon"]["I"] < b["epsilon"]["I"] for a, b in pairwise(lines))
    assert lines[0]["loss"] == {}
    assert "learning_loss" not in lines[0]
    _, words, _ = say("check", tiny, *as_options(PRIVATE))
    assert f"privacy at I: epsilon {spent['I']:.4g} at delta 0.01 (" in words
    assert "epsilon does not cover them" in words
    assert "no train_noise" not in words
    theta = [option for option in PRIVATE if "train" not in option]
    _, words, _ = say("check", only(tiny), *as_options(theta))
    assert "privacy: no train_noise: models, blind ones in masked sums, leave without" in words


def test_a_row_above_its_limit_is_refused_by_check_and_run(tiny, tmp_path, say):
    limit = [*as_options(PRIVATE), "--set", "privacy.epsilon=0.5"]
    for verb, more in (("check", []), ("run", ["--out", tmp_path / "runs"])):
        code, _, said = say(verb, only(tiny), *limit, *more)
        assert code == 2
        assert f"run {ROW}, privacy.epsilon: the row would spend more than epsilon = 0.5" in said


def test_resumed_and_parallel_runs_have_the_same_bits(tiny, tmp_path):
    class Stop(Observer):
        def round(self, seen):
            if seen.t == 1:
                raise KeyboardInterrupt

    whole = private_run(only(tiny), tmp_path / "whole", workers=1)
    plan = read_study(tiny, PRIVATE)
    with pytest.raises(KeyboardInterrupt):
        run_study(plan, tmp_path / "cut", Machine(workers=3), Stop())
    cut = tmp_path / "cut" / "tiny" / ROW / "seed-0"
    resume(cut)
    assert_same_run(whole, cut)
    kept = [[line["epsilon"] for line in Ledger(path).rounds()] for path in (whole, cut)]
    assert kept[0] == kept[1]
    plain = run_study(read_study(tiny), tmp_path / "plain") / ROW / "seed-0"
    one, other = (
        load_file(p / "checkpoints" / "last-3.safetensors")["w.values"] for p in (whole, plain)
    )
    assert not one.equal(other)


def test_the_report_has_epsilon_by_site(tiny, tmp_path, say):
    folder = private_run(only(tiny), tmp_path).parents[1]
    code, *_ = say("report", folder, "--out", tmp_path / "page", "--no-examples")
    assert code == 0
    table = (tmp_path / "page" / "tables" / "privacy.md").read_text()
    spent = Ledger(folder / ROW / "seed-0").rounds()[-1]["epsilon"]
    assert all(f"{value:.2f}" in table for value in spent.values())
    assert "delta = 0.01" in table


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_ledgers_of_sites_agree_with_the_forecast_and_the_server(learning, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    study, files = build_hospitals(tmp_path / "world")
    for file in files.values():
        file.write_text(f"{file.read_text()}\n[privacy]\nepsilon = 1000.0\ndelta = 1e-2\n")
    job = job_of(read_study(study, [*PRIVATE, f"method.learning={learning}"]), "auto-fedavg")
    layout = Layout.of(job.row.task.network())
    budgets = job.row.budgets(layout, job.row.task.problem().sites)
    forecast = {k: b.epsilon for k, b in budgets.items()}
    path = host(job, InProcessTransport(job, files), tmp_path / "runs")
    assert Ledger(path).status() == "finished"
    assert Ledger(path).rounds()[-1]["epsilon"] == pytest.approx(forecast, rel=1e-12)
    for site, spent in forecast.items():
        ledger = FileLedger(tmp_path / "state" / site / "privacy.jsonl", Limit(delta=1e-2))
        assert ledger.epsilon() == pytest.approx(spent, rel=1e-12)
