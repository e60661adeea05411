"""The part `[base.exchange]` of a study, from the file to the run folder, and in Python."""

import json

import pytest
import torch
from tests_tiny import TINY
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import LoaderSite, Machine, federate, read_study, resume, run_study
from autofedavg.core.errors import ConfigError, RunError
from autofedavg.core.trainer import Training
from autofedavg.engines.remote.server import host
from autofedavg.experiment.config import parse_run
from autofedavg.experiment.folder import read_toml
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.settings import Exchange
from autofedavg.report.read import read_results
from deployed import InProcessTransport, job_of
from folders import model_file

HEAD, *_ = TINY.partition("[[run]]")
ROW = "[[run]]\nname = 'auto'\nmethod = { name = 'auto-fedavg', S = 2, t0 = 2 }\n"
PART = """
[base.exchange]
deadline = 600
deadlines = { update_beta = 30 }
quorums = { update_beta = 2 }
down = "difference"
up = "bfloat16"
"""


def written(folder, part=PART, row=ROW):
    path = folder / "tiny.toml"
    path.write_text(HEAD.replace('baseline = "fedavg"', "") + part + row)
    return path


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (
            "deadlines = { local_trane = 3 }",
            "exchange.deadlines: local_trane is not a call; did yo",
        ),
        (
            "quorums = { evaluat = 3 }",
            "exchange.quorums: evaluat is not a call; did you mean evalua",
        ),
        ("quorums = { evaluate = 4 }", "exchange.quorums.evaluate is 4, and there are 3 sites"),
        ("deadlin = 3", "exchange.deadlin is not a setting of exchange; did you mean deadline"),
        ("deadline = -1", "exchange.deadline: input should be greater than or equal to 0"),
        ("down = 'zip'", "exchange.down: input should be 'float32', 'bfloat16' or 'difference'"),
        ("bad_answers = 'ignore'", "exchange.bad_answers: input should be 'fail' or 'drop'"),
        ("retries = 1.5", "exchange.retries: "),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, line, wrong):
    with pytest.raises(ConfigError, match=wrong.replace("(", r"\(")):
        read_study(written(tmp_path, f"[base.exchange]\n{line}\n"))


def test_a_method_that_needs_all_refuses_a_quorum_of_a_call(tmp_path):
    row = "[[run]]\nname = 'x'\nrounds = 6\nmethod = { name = 'fedma' }\n"
    part = "[base.exchange]\nquorums = { class_counts = 2 }\n"
    wrong = "the method needs every client, and exchange.quorums.class_counts is 2; set exchange"
    with pytest.raises(ConfigError, match=wrong):
        read_study(written(tmp_path, part, row))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_lossy_study_runs_resumes_and_says_how(tmp_path, say, workers):
    path = written(tmp_path)
    home = run_study(read_study(path), tmp_path / "whole", Machine(workers=workers, threads=1))
    run = home / "auto" / "seed-0"
    kept = read_toml(run / "config.toml")["exchange"]
    assert kept == {
        "deadline": 600.0,
        "deadlines": {"update_beta": 30.0},
        "quorums": {"update_beta": 2},
        "retries": 1,
        "test_quorum": 0,
        "bad_answers": "fail",
        "down": "difference",
        "up": "bfloat16",
        "disclose": "all",
    }
    assert 'down = "difference"  # study' in (run / "config.toml").read_text()
    assert "retries = 1  # ours" in (run / "config.toml").read_text()
    assert "update_beta = 30.0  # study" in (run / "config.toml").read_text()
    code, out, _ = say("check", path)
    assert code == 0
    assert "models as difference down, bfloat16 up" in out
    assert "exchange.deadlines" in out
    told = json.loads(say("check", path, "--json")[1])["rows"][0]["traffic"]
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    last = sum(cost[way] for cost in lines[2]["calls"].values() for way in ("down", "up"))
    assert last == pytest.approx(told["fedavg_a_round"] + told["validation_a_round"], rel=0.2)
    assert all(line["events"] == [] for line in lines)


def test_workers_do_not_change_the_bits_of_a_lossy_run(tmp_path):
    shas = set()
    for workers in (1, 3):
        machine = Machine(workers=workers, threads=1)
        home = run_study(read_study(written(tmp_path)), tmp_path / str(workers), machine)
        last = home / "auto" / "seed-0" / "checkpoints" / "last-3.json"
        shas.add(json.loads(last.read_text())["sha256"])
    assert len(shas) == 1


def test_a_folder_without_the_part_is_read_as_before(tmp_path):
    """What a version before this one wrote."""
    home = run_study(read_study(written(tmp_path, "")), tmp_path / "runs")
    assert "exchange" not in json.loads((home / "study.json").read_text())["runs"][0]["config"]
    run = home / "auto" / "seed-0"
    text = (run / "config.toml").read_text()
    assert "deadlines = {}  # ours" in text
    (run / "config.toml").write_text(text.partition("\n[exchange]")[0])
    values = read_toml(run / "config.toml")
    assert "exchange" not in values
    assert parse_run(values, "here").exchange == Exchange()
    assert resume(run) == run
    run_study(read_study(written(tmp_path, ""), seeds=[1]), tmp_path / "runs")
    (row,) = read_results([home]).rows
    assert len(row.finished) == 2


# --- in Python ------------------------------------------------------------------------------------


def loader(seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 4, generator=draw)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 6)


def federated(out, **more):
    return federate(
        lambda: torch.nn.Linear(4, 2),
        lambda network, batch: torch.nn.functional.cross_entropy(network(batch[0]), batch[1]),
        {name: LoaderSite(loader(n), loader(n + 5)) for n, name in enumerate("AB")},
        lambda network, batch: (network(batch[0]).argmax(1) == batch[1]).double(),
        rounds=2,
        training=Training(epochs=1, learning_rate=0.05),
        out=out,
        machine=Machine(workers=1, threads=1),
        **{"method": "fedavg", **more},
    )


def test_federate_takes_a_quorum_and_an_exchange(tmp_path):
    exchange = Exchange(up="difference", deadlines={"evaluate": 60})
    federated(tmp_path / "run", quorum=1, exchange=exchange)
    kept = read_toml(tmp_path / "run" / "config.toml")
    assert kept["quorum"] == 1
    assert Exchange.model_validate(kept["exchange"]) == exchange
    with pytest.raises(RunError, match="other settings"):
        federated(tmp_path / "run", quorum=1)
    federated(tmp_path / "run", quorum=1, exchange=exchange)


@pytest.mark.parametrize("given", [{"quorum": 3}, {"quorum": -1}])
def test_federate_refuses_a_quorum_that_cannot_be(given):
    with pytest.raises(ConfigError, match=r"federate: quorum is .*, and there are 2 sites; use 0"):
        federated(None, **given)


def test_federate_goes_on_with_a_folder_of_an_earlier_version(tmp_path):
    first = federated(tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    kept = read_toml(path)
    text = path.read_text().partition("\n[exchange]")[0].replace("quorum = 0\n", "")
    path.write_text(text)
    assert set(kept) - set(read_toml(path)) == {"quorum", "exchange"}
    assert federated(tmp_path / "run").alpha == first.alpha


# --- over the wire --------------------------------------------------------------------------------


def test_a_job_over_the_wire_has_the_simulator_s_bits_though_a_site_forgets(tmp_path, monkeypatch):
    """Notes as bytes, names of cases kept at the site, and a site that restarts in every round."""
    study = read_study(written(tmp_path))
    machine = Machine(workers=1, threads=1)
    simulated = run_study(study, tmp_path / "simulated", machine) / "auto" / "seed-0"
    job = job_of(study, "auto")
    monkeypatch.setattr(type(job.row.task), "private_names", True)

    def restarts(verb, site, answer):
        if (verb, site) == ("local_train", "II") and answer.arrays:
            transport.services[site]._client.client_state = ClientState()
        return answer

    transport = InProcessTransport(job, spoil=restarts)
    path = host(job, transport, tmp_path / "hosted")
    for name in ("last-3", "best-global", "best-local-II"):
        one, other = (
            json.loads(model_file(run, name).read_text())["sha256"] for run in (simulated, path)
        )
        assert one == other
    events = [event for line in RunFolder(path).rounds() for event in line["events"]]
    assert {event["site"] for event in events} == {"II"}
    assert {event["what"] for event in events} == {"resent"}
    assert {event["call"] for event in events} >= {"share_models", "validate_local", "evaluate"}
