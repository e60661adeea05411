"""Several steps a message and learning at the server, through study, simulator and run folder."""

import json

import pytest
import torch
from tests_tiny import TINY

from autofedavg import read_study, run_study
from autofedavg.report.costs import bytes_per_round, extra_traffic, seconds_per_round
from autofedavg.report.read import read_results
from toy import float64

HEAD = TINY.partition("[[run]]")[0]
FLOAT32 = 2e-5  # in alpha, which moves by a thousand times as much; the same bits when measured


def study(folder, **rows):
    """A study of the tiny hospitals with these rows of auto-fedavg: name = settings as TOML."""
    text = HEAD.replace('baseline = "fedavg"', "")
    for name, settings in rows.items():
        text += f"[[run]]\nname = '{name}'\nmethod = {{ name = 'auto-fedavg', {settings} }}\n"
    (folder / "tiny.toml").write_text(text)
    return folder / "tiny.toml"


def lines(run):
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("weights", ["network", "layer"])
def test_complete_runs_of_the_softmax_agree_in_float32(tmp_path, weights):
    """beta_rate is large so that alpha moves."""
    method = f"constraint = 'softmax', weights = '{weights}', S = 3, beta_rate = 0.1"
    rows = {who: f"{method}, learning = '{who}'" for who in ("clients", "server")}
    home = run_study(read_study(study(tmp_path, **rows)), tmp_path / "runs")
    there, here = (lines(home / who / "seed-0") for who in ("clients", "server"))
    assert set(here[0]["calls"]) == (
        set(there[0]["calls"]) - {"share_models", "update_beta"} | {"differentiate"}
    )
    for one, other in zip(here, there, strict=True):
        alpha = float64(other["alpha"])
        torch.testing.assert_close(float64(one["alpha"]), alpha, rtol=0, atol=FLOAT32)
        assert (alpha - 1 / 3).abs().max() > 0.02


def test_check_says_what_learning_at_the_server_costs(tmp_path, say):
    """One round of three learns: 4 / 3 of FedAvg's bytes on top, and gradients in memory."""
    path = study(tmp_path, clients="S = 4, t0 = 2", server="S = 4, t0 = 2, learning = 'server'")
    code, out, _ = say("check", path)
    assert code == 0
    assert "33.3 % more for learning the weights" in out
    assert "133.3 % more for learning the weights" in out
    there, here = json.loads(say("check", path, "--json")[1])["rows"]
    assert here["traffic"]["extra"] == pytest.approx(4 / 3, abs=1e-3)
    assert here["memory"]["bank"] == 2 * there["memory"]["bank"]


def test_the_report_puts_its_bytes_against_their_own_formula(tmp_path):
    """As the paper's against (K-1)/(2 t0): here S/t0, for networks without buffers the bytes."""
    path = study(tmp_path, server="S = 2, t0 = 2, learning = 'server'")
    home = run_study(read_study(path), tmp_path / "runs")
    (row,) = read_results([home]).rows
    measured, formula = extra_traffic(row)
    assert formula == pytest.approx(2 / 3)  # one call of S = 2 in three rounds
    assert measured == pytest.approx(formula, rel=0.02)
    assert bytes_per_round(row)["learning weights"] > 0
    assert seconds_per_round(row)["learning weights"] > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("S = 3, steps_per_message = 4", "steps_per_message = 4 is more than S = 3"),
        ("steps_per_message = 0", "method.steps_per_message: input should be greater than or"),
        ("steps_per_message = 2, learning = 'server'", "needs learning = 'clients'"),
        ("learning = 'both'", "method.learning: input should be 'clients', 'server' or 'blind'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(tmp_path, say, settings, words):
    code, _, err = say("run", study(tmp_path, row=settings), "--out", tmp_path / "runs")
    assert code == 2
    assert words in " ".join(err.split())
    assert not (tmp_path / "runs").exists()
