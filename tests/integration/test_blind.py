"""Blind learning in whole runs: resumed, as jobs, on real engines, in reports, and in `check`."""

import json
import re
from pathlib import Path

import pytest
import torch
from tests_tiny import TINY
from torch import nn

from autofedavg import read_study, run_study
from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.engines.remote.server import host
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.run import RunLoop
from autofedavg.experiment.selection import Paused
from autofedavg.federation.port import Federation
from autofedavg.federation.serialization import decode
from autofedavg.methods import METHODS
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.tasks.cifar.vgg9 import vgg9
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.segmentation import network as segmenter
from deployed import InProcessTransport, assert_same_run, environment_of, job_of
from toy import METRIC, TRAINING, PointSite, half_squared_distance, norm_net, toy_problem

BLIND = 'method = { name = "auto-fedavg", learning = "blind"'
ROWS = {
    "fedavg": 'method = { name = "fedavg" }',
    "blind": f"{BLIND}, sketch = 256 }}",
    "shown": f'{BLIND}, constraint = "softmax", weights = "layer", show_weights = true }}',
}


def study_of(folder: Path, names=tuple(ROWS), **base):
    head = TINY[: TINY.index("[[run]]")].replace('baseline = "fedavg"\n', "")
    for name, value in base.items():
        head = head.replace("rounds = 3", f"rounds = 3\n{name} = {json.dumps(value)}")
    path = folder / "blind.toml"
    path.write_text(head + "\n".join(f'[[run]]\nname = "{n}"\n{ROWS[n]}\n' for n in names))
    return read_study(path)


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("blind")
    return run_study(study_of(home), home / "runs")


@pytest.mark.parametrize("name", ["blind", "shown"])
def test_a_job_has_the_simulators_bits(name, simulated, tmp_path):
    """With masks, as sites on other machines always have them, behind their policy."""
    study = study_of(tmp_path)
    job = job_of(study, name)
    transport = InProcessTransport(job)
    there = host(job, transport, tmp_path / "runs")
    assert_same_run(simulated / name / "seed-0", there)
    here = lines_of(simulated / name / "seed-0")
    assert [line["blind"] for line in lines_of(there)] == [line["blind"] for line in here]
    keys = [reply.facts["key"] for reply in map(decode, transport.sent) if "key" in reply.facts]
    assert len(set(keys)) == 3
    assert all(len(key) == 64 for key in keys)
    parts = [reply.arrays for reply in map(decode, transport.sent) if "narrow" in reply.arrays]
    assert all(int(part["narrow"].abs().max()) > 2**30 for part in parts)


def exchanges(run: Path) -> list[int]:
    """How many times each round asked the sites something."""
    return [sum(cost["calls"] for cost in line["calls"].values()) for line in lines_of(run)]


def test_a_learning_round_asks_for_no_more_exchanges_than_two_beyond_fedavgs(simulated):
    blind, fedavg = (exchanges(simulated / name / "seed-0") for name in ("blind", "fedavg"))
    assert all(many <= few + 2 for many, few in zip(blind, fedavg, strict=True))
    learned = [line["learned"] for line in lines_of(simulated / "blind" / "seed-0")]
    assert learned == [False, True, True]


def test_a_run_folder_holds_no_sites_model_and_reports_do_without(simulated, say, tmp_path):
    run = simulated / "blind" / "seed-0"
    assert not [path for path in run.rglob("*") if "local-" in path.name]
    for line in lines_of(run):
        assert line["alpha"] is None
        assert line["loss"] == {}
        assert line["validation_local"] == {}
        assert line["answered"] == ["I", "II", "III"]
    assert {row.model for row in RunFolder(run).scores()} <= {"global", "global-last"}
    code, out, err = say("report", simulated, "--out", tmp_path / "report", "--no-examples")
    assert code == 0, err
    assert "blind" in out
    code, out, err = say("compare", simulated / "fedavg", simulated / "blind")
    assert code == 0, err
    code, out, err = say("watch", simulated, "--once")
    assert code == 0, err


def test_the_how_to_page_runs_and_quotes_what_is_printed(say, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "learn-blindly.md").read_text()
    study = tmp_path / "blind.toml"
    study.write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    code, out, err = say("check", study)
    assert code == 0, err
    printed, line, warning = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert set(printed.splitlines()) <= {row.strip() for row in out.splitlines()}
    code, _, err = say("run", study, "--only", "blind", "--out", tmp_path, "--threads", "1")
    assert code == 0, err
    run = tmp_path / "blind" / "blind" / "seed-0"
    shown = lines_of(run)[-1]["blind"]
    assert re.findall(r'"(\w+)":', line)[1:] == [k for k in shown if "loss" not in k]
    assert f'"numbers": {shown["numbers"]}, "of": {shown["of"]}' in line
    assert f'"resolution": {shown["resolution"]:.3f}' in line
    words = re.sub(r"\d+(\\\.\d+)?", r"[\\d.]+", re.escape(warning.strip()))
    assert re.search(words, (run / "log.txt").read_text())


def test_check_prints_the_traffic_of_the_ways_of_learning(say, tmp_path):
    study_of(tmp_path)
    code, out, err = say("check", tmp_path / "blind.toml")
    assert code == 0, err
    ways = [line for line in out.splitlines() if "adds to FedAvg's traffic" in line]
    assert len(ways) == 2
    assert ways[0].split(": ")[1].startswith("clients 100.0 %, server (S = 20) 2000.0 %, blind ")
    assert "0 of sites' own models (test_local = none)" in out
    assert "hides models from a server that follows the protocol" in out


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("engine", "package"), [("flare", "nvflare"), ("flower", "flwr")])
def test_real_engines_have_the_simulators_bits(
    engine, package, simulated, command, tmp_path, monkeypatch
):
    pytest.importorskip(package, reason=f"the extra `{engine}` is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    study_of(tmp_path, ["fedavg", "blind"])
    study, out = tmp_path / "blind.toml", tmp_path / "runs"
    done = command("run", study, "--engine", engine, "--out", out, timeout=1780)
    assert done.returncode == 0, done.stderr
    there = out / "tiny" / "blind" / "seed-0"
    assert_same_run(simulated / "blind" / "seed-0", there)
    assert environment_of(there)["engine"] == engine
    blind, fedavg = exchanges(there), exchanges(out / "tiny" / "fedavg" / "seed-0")
    assert all(many <= few + 2 for many, few in zip(blind, fedavg, strict=True))


# --- resumed runs -----------------------------------------------------------------------------


def loop(folder: Path, stop: int | None = None) -> RunFolder:
    """A blind run of four rounds, or its first ones; continued where the folder exists."""
    problem = toy_problem(3, norm_net)
    home = RunFolder(folder) if folder.exists() else RunFolder.create(folder, "", {})
    method = AutoFedAvg(learning="blind", constraint="softmax", sketch=20, show_weights=True)

    def watch(seen):
        if seen.t == stop:
            raise Paused("here")

    with Simulator(problem, TRAINING, Seeds(7), workers=1, threads=1) as transport:
        federation = Federation(transport, metric=METRIC, seeds=Seeds(7))
        w0, layout = problem.initial(Seeds(7))
        RunLoop(method, Rounds(rounds=4), federation, layout, METRIC, home).run(w0, watch)
    return home


def outcome(folder: RunFolder):
    lines = [
        {k: line[k] for k in ("t", "alpha", "blind", "validation", "answered")}
        for line in lines_of(folder.path)
    ]
    saved = folder.load_round()
    return lines, folder.scores(), {k: v.numpy().tobytes() for k, v in saved.tensors.items()}


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_that_is_resumed_has_the_same_bits(stop, tmp_path):
    whole = loop(tmp_path / "whole")
    with pytest.raises(Paused):
        loop(tmp_path / "parts", stop)
    resumed = loop(tmp_path / "parts")
    assert outcome(resumed) == outcome(whole)
    assert any(name.startswith("kept.") for name in outcome(whole)[2])


# --- traffic at full size ---------------------------------------------------------------------


class Flat(nn.Module):
    """One float32 vector of so many numbers."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(numbers))


def mean_squared_distance(network: nn.Module, target: torch.Tensor) -> torch.Tensor:
    return half_squared_distance(network, target) / network.w.numel()


@pytest.mark.parametrize(
    ("network", "K", "most"),
    [
        (lambda: vgg9(10), 16, 0.02),
        (lambda: segmenter(Pipeline(network="basic-unet")), 3, 0.012),  # 5.75 million numbers
    ],
    ids=["vgg9", "basic-unet"],
)
def test_what_learning_every_round_adds_to_fedavgs_traffic(network, K, most):
    """A network of this size, m = 65,536, t0 = 1: counted at the port."""
    numbers = Layout.of(network()).trainable
    sites = {f"site-{k:02}": PointSite((0.1 * k,), (0.0,)) for k in range(K)}
    problem = Problem(lambda: Flat(numbers), mean_squared_distance, sites, METRIC)
    moved = {}
    for name, t0 in (("blind", 1), ("never", 100)):
        moved[name] = _bytes(problem, AutoFedAvg(learning="blind", t0=t0))
    moved["fedavg"] = _bytes(problem, METHODS["fedavg"]())
    training = K * 2 * 4 * numbers
    extra = (moved["blind"] - moved["never"]) / training
    assert 0.9 * most < extra < most
    assert moved["blind"] < moved["fedavg"]  # each w is sent once, and kept


def _bytes(problem, method) -> int:
    """Bytes of the second round, validation included."""
    with Simulator(problem, TRAINING, Seeds(7), workers=1, threads=1) as transport:
        federation = Federation(transport, metric=METRIC, seeds=Seeds(7))
        w0, layout = problem.initial(Seeds(7))
        for state in method.rounds(federation, layout, 2, Round(0, w0)):
            federation.evaluate(state.w, "validation", METRIC)
            account = federation.take_account()
    return sum(cost.down + cost.up for cost in account.values())


# --- settings that do not fit -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"t0": "auto", "when_idle": "sizes"}, "needs the loss at n_k/n"),
        ({"S": 2}, "S = 2 does nothing with learning = 'blind'"),
        ({"reinitialise": True}, "reinitialise = True does nothing"),
        ({"weights": "layer", "smoothing": 1.0}, "smoothing = 1.0 does nothing"),
        ({"clip_steps": 100.0}, "clip_steps = 100.0 does nothing"),
        ({"keep_above_one": "softplus"}, "needs keep_above_one = 'floor'"),
        ({"steps_per_message": 2}, "steps_per_message = 2 is more than S = 1"),
        ({"beta0": 20.0}, "beta0 = 20.0 is out of bounds"),
        ({"constraint": "softmax", "beta0": 3.0}, "beta0 = 3.0 is out of bounds"),
        ({"learning": "clients", "sketch": 64}, "sketch needs learning = 'blind'"),
        ({"learning": "server", "batches": 2}, "batches needs learning = 'blind'"),
        ({"learning": "clients", "show_weights": True}, "show_weights needs learning = 'blind'"),
    ],
    ids=str,
)
def test_settings_that_would_do_nothing_are_refused(settings, why):
    with pytest.raises(ValueError, match=why):
        AutoFedAvg(**{"learning": "blind", **settings})


@pytest.mark.parametrize("sites", [2, 1])
def test_two_sites_are_refused(sites):
    with pytest.raises(ConfigError, match="and there"):
        AutoFedAvg(learning="blind").check(sites)
    AutoFedAvg(learning="blind").check(3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("exchange.up='bfloat16'", "exchange.up = 'bfloat16' does nothing"),
        ("exchange.up='difference'", "exchange.up = 'difference' does nothing"),
        ("quorum=2", "a quorum of 2 does not"),
        ("exchange.quorums.masked_gradient=1", "a quorum of 1 does not"),
        ("test_local='full'", "the method shows no site's own model"),
    ],
)
def test_a_study_that_does_not_fit_is_refused(change, why, tmp_path):
    study_of(tmp_path, ["blind"])
    with pytest.raises(ConfigError, match=why):
        read_study(tmp_path / "blind.toml", [change.replace("'", '"')])


def test_an_unknown_way_of_learning_is_one_mistake(tmp_path):
    study_of(tmp_path, ["blind"])
    with pytest.raises(ConfigError) as refused:
        read_study(tmp_path / "blind.toml", ['method.learning="nobody"'])
    assert refused.value.what == (
        "method.learning: input should be 'clients', 'server' or 'blind' (given: 'nobody')"
    )
