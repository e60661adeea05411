"""FedMA and the ensemble, end to end: generated images, three sites, labels unevenly spread."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests_tiny import TINY
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import LoaderSite, Machine, Training, federate, read_study, run_study
from autofedavg.algorithm import Round
from autofedavg.core.ensemble import Ensemble
from autofedavg.core.errors import ConfigError
from autofedavg.core.problem import CaseScore, Problem
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.experiment.forecast import forecast
from autofedavg.federation.port import Federation
from autofedavg.methods.base import Method, size_weights
from autofedavg.methods.ensemble import EnsembleMethod
from autofedavg.methods.fedma.method import FedMA
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table
from autofedavg.tasks.cifar.vgg9 import vgg9
from folders import model_file

CLASSES = 4
LABELS = {"A": [0.6, 0.3, 0.05, 0.05], "B": [0.05, 0.05, 0.5, 0.4], "C": [0.1, 0.4, 0.1, 0.4]}
TRAINING = Training(epochs=6, batch_size=16, optimiser="sgd", learning_rate=0.05)
P = 4


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, CLASSES),
    )


def images(cases: int, chances: list[float], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    prototypes = torch.randn(CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor(chances), cases, replacement=True, generator=draw)
    return prototypes[y] + 1.5 * torch.randn(cases, 1, 8, 8, generator=draw), y


def loss(network, batch):
    return nn.functional.cross_entropy(network(batch[0]), batch[1])


def right(network, batch):
    return (network(batch[0]).argmax(1) == batch[1]).double()


@dataclass
class ImageSite:
    """A site that knows its class counts."""

    name: str
    splits: dict[str, tuple[torch.Tensor, torch.Tensor]]

    def settle(self, device):
        pass

    def cases(self):
        return {split: len(y) for split, (_, y) in self.splits.items()}

    def class_counts(self):
        return torch.bincount(self.splits["train"][1], minlength=CLASSES).tolist()

    def train_batches(self, seeds, t, training):
        x, y = self.splits["train"]
        draw = seeds.generator(self.name, Purpose.TRAIN_BATCHES, t)
        for _ in range(training.epochs):
            for part in torch.randperm(len(y), generator=draw).split(training.batch_size):
                yield x[part], y[part]

    def weight_batch(self, seeds, t, s, split, batch_size):
        return self.splits[split]

    def score(self, network, split):
        good = right(network, self.splits[split]).tolist()
        return [CaseScore(f"{split}-{i}", "accuracy", value) for i, value in enumerate(good)]


def problem() -> Problem:
    even = [1 / CLASSES] * CLASSES
    sites = {
        name: ImageSite(
            name,
            {
                "train": images(100 + 20 * k, chances, k),
                "validation": images(60, even, 10 + k),
                "test": images(200, even, 20 + k),
            },
        )
        for k, (name, chances) in enumerate(LABELS.items())
    }
    return Problem(cnn, loss, sites, "accuracy")


def accuracy(federation: Federation, w) -> float:
    federation.training_over = True
    return federation.evaluate(w, "test").mean("accuracy")


@pytest.mark.parametrize("seed", [0, 1])
def test_three_passes_beat_averaging_the_same_nets_once_and_one_client_alone(seed) -> None:
    seeds, given = Seeds(seed), problem()
    with Simulator(given, TRAINING, seeds, workers=1) as transport:
        federation = Federation(transport, seeds=seeds)
        w, layout = given.initial(seeds)
        start = FedMA().begin(federation, Round(0, w))
        (alone,) = EnsembleMethod().rounds(federation, layout, 1, start)
        nets = alone.w
        averaged = accuracy(federation, nets.combine(size_weights(federation)))
        single = max(accuracy(federation, nets[site]) for site in nets.sites)
        states = list(FedMA().rounds(federation, layout, 3 * P, start))
        matched = accuracy(federation, states[-1].w)
    # Independent nets averaged unit by unit are no better than chance, 0.25; matched ones are.
    assert averaged < 0.45
    assert matched > 0.7
    assert matched > averaged + 0.3
    assert matched > single


def test_the_same_first_nets_are_trained_by_both_methods() -> None:
    with Simulator(problem(), TRAINING, Seeds(0), workers=1) as transport:
        federation = Federation(transport)
        w, layout = problem().initial(Seeds(0))
        start = FedMA().begin(federation, Round(0, w))
        ensemble = next(iter(EnsembleMethod().rounds(federation, layout, 1, start)))
        nets = ensemble.w_k.values.clone()
        fedma = next(iter(FedMA().rounds(federation, layout, P, start)))
        assert torch.equal(fedma.w_k.values, nets)


# --- through the run folder -----------------------------------------------------------------------


def sites(validation: bool = True) -> dict[str, LoaderSite]:
    def loader(cases, chances, seed, shuffle=False):
        return DataLoader(TensorDataset(*images(cases, chances, seed)), 20, shuffle=shuffle)

    even = [1 / CLASSES] * CLASSES
    return {
        name: LoaderSite(
            loader(40 + 10 * k, chances, k, shuffle=True),
            loader(40, even, 10 + k) if validation else None,
            loader(40, even, 20 + k),
        )
        for k, (name, chances) in enumerate(LABELS.items())
    }


def train(out: Path, method: Method, rounds: int, workers: int = 1, **how):
    quick = Training(epochs=1, batch_size=20, optimiser="sgd", learning_rate=0.05)
    return federate(
        cnn, loss, sites(), right, method=method, rounds=rounds, training=quick, out=out,
        machine=Machine(workers=workers), **how,
    )  # fmt: skip


def contents(out: Path) -> dict[str, bytes]:
    files = sorted((out / "checkpoints").glob("*.safetensors"))
    found = {
        f"{file.stem}/{key}": tensor.numpy().tobytes()
        for file in files
        for key, tensor in load_file(file).items()
    }
    return found | {"scores": (out / "scores.csv").read_bytes()}


@pytest.mark.parametrize("method", [FedMA(), EnsembleMethod()], ids=lambda m: m.name)
def test_workers_do_not_change_a_bit(tmp_path, method) -> None:
    train(tmp_path / "one", method, 2 * P)
    train(tmp_path / "two", method, 2 * P, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stop", range(1, 2 * P + 1))
def test_fedma_goes_on_from_every_exchange_with_the_same_bits(tmp_path, stop, whole) -> None:
    def watch(seen) -> None:
        if seen.t == stop:
            raise Stopped

    out = tmp_path / "stopped"
    with pytest.raises(Stopped):
        train(out, FedMA(), 2 * P, watch=watch)
    assert (out / "checkpoints" / f"last-{stop}.json").exists()
    train(out, FedMA(), 2 * P)
    assert contents(out) == whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("fedma") / "whole"
    train(out, FedMA(), 2 * P)
    return contents(out)


def test_the_grown_network_is_validated_tested_counted_and_handed_back(tmp_path) -> None:
    result = train(tmp_path, FedMA(), 2 * P, select="last")
    means = [line["validation"]["mean"] for line in result.rounds]
    assert [mean is not None for mean in means] == [False] * 3 + [True] + [False] * 3 + [True]
    facts = json.loads(model_file(tmp_path, "final-global").read_text())
    widths = facts["form"]["widths"]
    assert widths[0] > 6
    assert [result.network[n].weight.shape[0] for n in (0, 3, 7, 9)] == widths
    tested = [
        float(right(result.network.eval(), batch).mean())
        for site in sites().values()
        for batch in [tuple(site.test.dataset.tensors)]
    ]
    assert result.summary.global_test_avg == pytest.approx(sum(tested) / 3)
    assert set(result.summary.matrix) == set("ABC")
    size = sum(p.numel() for p in cnn().parameters()) * 4
    grown = sum(p.numel() for p in result.network.parameters()) * 4
    calls = [line["calls"] for line in result.rounds]
    assert calls[0]["local_train"]["down"] < size  # initial weights of each client's own
    assert 3 * size < calls[P]["local_train"]["down"] < 3 * size * 1.1
    assert 3 * grown < calls[-1]["local_train"]["up"] < 3 * grown * 1.1
    assert 3 * grown < calls[-1]["evaluate"]["down"] < 3 * grown * 1.1
    assert "evaluate" not in calls[0]
    assert "class_counts" in calls[-1]


def test_the_ensemble_is_one_predictor_handed_back_as_such(tmp_path) -> None:
    result = train(tmp_path, EnsembleMethod(), 2)
    assert isinstance(result.network, Ensemble)
    tested = [
        float(right(result.network.eval(), tuple(site.test.dataset.tensors)).mean())
        for site in sites().values()
    ]
    assert result.summary.global_test_avg == pytest.approx(sum(tested) / 3)
    assert set(result.summary.matrix) == set("ABC")
    size = sum(p.numel() for p in cnn().parameters()) * 4
    down = result.rounds[1]["calls"]["evaluate"]["down"]
    assert 9 * size < down < 9 * size * 1.1


@pytest.mark.slow
def test_vgg9_grows_and_is_the_same_with_two_workers(tmp_path) -> None:
    def pictures(cases, seed):
        draw = torch.Generator().manual_seed(seed)
        y = torch.randint(10, (cases,), generator=draw)
        x = torch.randn(cases, 3, 32, 32, generator=draw) + 0.3 * y[:, None, None, None]
        return DataLoader(TensorDataset(x, y), 8)

    for workers in (1, 2):
        result = federate(
            vgg9,
            loss,
            {
                k: LoaderSite(pictures(16, n), None, pictures(16, 9 + n))
                for n, k in enumerate("ABC")
            },
            right,
            method=FedMA(),
            rounds=18,
            training=Training(epochs=1, optimiser="sgd", learning_rate=0.01),
            select="last",
            out=tmp_path / str(workers),
            machine=Machine(workers=workers, threads=1),
        )
    widths = [p.shape[0] for name, p in result.network.named_parameters() if "weight" in name]
    original = [32, 64, 128, 128, 256, 256, 512, 512, 10]
    assert widths[-1] == 10
    assert all(new > old for new, old in zip(widths[:-1], original[:-1], strict=True))
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", [FedMA(), EnsembleMethod()], ids=lambda m: m.name)
def test_on_a_gpu_a_run_goes_on_and_starts_from_the_same_nets_as_on_the_cpu(
    tmp_path, method
) -> None:
    def on_gpu(network, batch):
        device = next(network.parameters()).device
        return tuple(part.to(device) for part in batch)

    def go(device, rounds, out):
        return federate(
            cnn,
            lambda network, batch: loss(network, on_gpu(network, batch)),
            sites(),
            lambda network, batch: right(network, on_gpu(network, batch)),
            method=method,
            rounds=rounds,
            training=Training(iterations=1, optimiser="sgd", learning_rate=1e-30),
            out=out,
            machine=Machine(device=device),
        )

    here, there = (go(device, P, tmp_path / device) for device in ("cpu", "cuda"))
    for one, other in zip(here.rounds, there.rounds, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    again = go("cuda", P, tmp_path / "cuda")  # restores and tests once more, from the disk
    assert again.summary == there.summary


# --- studies --------------------------------------------------------------------------------------

ROW = """
[[run]]
name = "fedma"
method = { name = "fedma" }
"""


def test_a_study_with_a_network_that_cannot_be_matched_stops_before_any_work(
    tiny, tmp_path
) -> None:
    tiny.write_text(TINY + ROW)
    study = read_study(tiny)
    wrong = "UNet: the network is no plain chain of layers: it is a UNet; use a chain"
    with pytest.raises(ConfigError, match=wrong):
        run_study(study, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match=wrong):
        forecast(study)


def test_a_study_with_a_quorum_below_k_is_refused(tiny) -> None:
    tiny.write_text(TINY + ROW + "quorum = 2\n")
    with pytest.raises(ConfigError, match="the method needs every client, and quorum is 2; set q"):
        read_study(tiny)
    tiny.write_text(TINY + ROW + "quorum = 3\n")
    read_study(tiny)


def test_the_forecast_counts_an_ensemble_s_models_at_every_site(tiny) -> None:
    tiny.write_text(TINY + ROW.replace("fedma", "ensemble"))
    rows = {row["name"]: row for row in forecast(read_study(tiny))["rows"]}
    one = rows["fedavg"]["traffic"]["validation_a_round"]
    assert rows["ensemble"]["traffic"]["validation_a_round"] == 3 * one
    assert rows["local-only"]["traffic"]["validation_a_round"] == 0


def test_the_forecast_counts_what_a_method_has_scored_besides_the_global_model(tiny) -> None:
    tiny.write_text(TINY + ROW.replace("fedma", "fedce"))
    rows = {row["name"]: row for row in forecast(read_study(tiny))["rows"]}
    fedavg, fedce = rows["fedavg"], rows["fedce"]
    assert fedce["traffic"]["fedavg_a_round"] == fedavg["traffic"]["fedavg_a_round"]
    one = fedavg["traffic"]["validation_a_round"]
    assert fedce["traffic"]["validation_a_round"] == 2 * one
    assert (fedavg["evaluations"]["a_round"], fedce["evaluations"]["a_round"]) == (6, 9)


def test_a_segmentation_ensemble_runs_from_a_study_and_is_reported(tiny, tmp_path) -> None:
    tiny.write_text(TINY + ROW.replace("fedma", "ensemble"))
    home = run_study(read_study(tiny, only=["ensemble"]), out=tmp_path / "runs")
    table = scores_table(read_results([home]))
    ((label, cells),) = table.rows
    assert label == "ensemble"
    assert all(0 <= cell.value <= 100 for cell in cells)
