"""Sites that train side by side on a real GPU, against sites that train one after another."""

import pytest
import torch
from torch import nn

from autofedavg.algorithm import Round
from autofedavg.core.bank import Model
from autofedavg.core.errors import DataError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.overlapping import OverlappedGroup
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.client import ClientGroup
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.tasks.imaging.segmentation import ahead

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")
ADAM = Training(iterations=12, batch_size=4, learning_rate=0.003)
TRAININGS = {
    "adam": ADAM,
    "sgd": Training(iterations=12, batch_size=4, optimiser="sgd", learning_rate=0.01),
    "bf16": Training(iterations=12, batch_size=4, learning_rate=0.003, precision="bf16"),
}


def network(dropout=0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.PReLU(), nn.Dropout(dropout),
        nn.Conv3d(8, 8, 3, stride=2, padding=1), nn.BatchNorm3d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 512, 32), nn.ReLU(), nn.Linear(32, 1),
    )  # fmt: skip


def linear() -> nn.Module:
    """Products of matrices alone: what they give is the same bits every time."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16**3, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 1)
    )


def squared(net, batch):
    return (net(batch[0]).float() - batch[1]).square().mean()


class Site:
    """Noise; batches are made on the GPU, or ahead of time by a thread."""

    def __init__(self, name: str, cases: int, made_ahead: int = 0) -> None:
        self.name, self._n, self._ahead = name, cases, made_ahead
        self.breaks_at = 0

    def settle(self, device) -> None:
        random = torch.Generator().manual_seed(self._n)
        self._x = torch.randn(self._n, 1, 16, 16, 16, generator=random).to(device)
        self._y = self._x.mean((1, 2, 3, 4)).reshape(-1, 1) * 50

    def cases(self):
        return {"train": self._n, "validation": 1, "test": 1}

    def train_batches(self, seeds, t, training):
        random = seeds.numpy(self.name, Purpose.TRAIN_BATCHES, t)
        steps = training.iterations or training.epochs * -(-self._n // training.batch_size)
        picks = [random.randint(self._n, size=training.batch_size) for _ in range(steps)]
        return ahead([lambda k=k, p=p: self._batch(k, p) for k, p in enumerate(picks)], self._ahead)

    def weight_batch(self, seeds, t, s, split, batch_size):
        random = seeds.numpy(self.name, Purpose.AGGREGATE_BATCHES, t, s)
        return self._batch(0, random.randint(self._n, size=batch_size))

    def _batch(self, k, picks):
        if self.breaks_at and k == self.breaks_at:
            raise DataError("torn file", where=self.name)
        rows = picks[: len(picks) - (k % 3 == 2)]  # every third is a short one
        rows = torch.from_numpy(rows).to(CUDA)
        big = torch.randn(64, 64, 64, device=CUDA, generator=torch.Generator(CUDA).manual_seed(k))
        return self._x[rows] + 0 * big.sum(), self._y[rows].clone()

    def score(self, network, split):
        return []


def problem(build=network, made_ahead=0, names="abcd") -> Problem:
    sites = {name: Site(name, 5 + 3 * k, made_ahead) for k, name in enumerate(names)}
    return Problem(build, squared, sites, steady=True)


def trained(training, group, rounds=3, at_once=None, start=0, w=None, **how):
    """Models and losses of every round, and the group."""
    task, seeds, found = problem(**how), Seeds(4), []
    with Simulator(task, training, seeds, device="cuda", workers=4) as simulator:
        clients = simulator._groups[0]._clients
        assert isinstance(simulator._groups[0], OverlappedGroup)
        made = group(clients, at_once=lambda: at_once) if at_once else group(clients)
        simulator._groups = [made]
        federation = Federation(simulator)
        if w is None:
            first, _ = task.initial(seeds)
            w = Model(first.values.cuda(), first.counters.cuda())
        for t in range(start + 1, rounds + 1):
            one = federation.local_train(t, w, T=5)
            found.append((one.w_k.values.clone(), one.w_k.counters.clone(), dict(one.losses)))
            w = one.w_k.combine(torch.full((len(one.w_k.sites),), 1 / len(one.w_k.sites)))
        torch.cuda.synchronize()
    return found, made


def close(found, wanted, **tolerance) -> None:
    for (values, counters, losses), (exact, counted, lost) in zip(found, wanted, strict=True):
        torch.testing.assert_close(values, exact, **tolerance)
        assert torch.equal(counters, counted)
        assert losses == pytest.approx(lost, rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("made_ahead", [0, 2])
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_three_rounds_of_four_sites(training, made_ahead) -> None:
    wanted, _ = trained(training, ClientGroup, made_ahead=made_ahead)
    found, group = trained(training, OverlappedGroup, made_ahead=made_ahead)
    assert len(group._lanes) == 4
    assert all(lane.trainer._replays._recordings for lane in group._lanes)
    close(found, wanted, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("at_once", [2, 4])
def test_dropout_and_matrix_products_are_bit_identical(at_once) -> None:
    """Nothing that a site draws or computes depends on its neighbours."""
    wanted, _ = trained(ADAM, OverlappedGroup, at_once=1, build=linear)
    found, _ = trained(ADAM, OverlappedGroup, at_once=at_once, build=linear)
    for (values, _, losses), (exact, _, lost) in zip(found, wanted, strict=True):
        assert torch.equal(values, exact)
        assert losses == lost
    one_by_one, _ = trained(ADAM, ClientGroup, build=linear)
    close(found, one_by_one, rtol=1e-4, atol=1e-5)


def test_epochs_of_different_lengths() -> None:
    epochs = Training(epochs=4, batch_size=4, learning_rate=0.003)
    wanted, _ = trained(epochs, ClientGroup, build=linear)
    found, _ = trained(epochs, OverlappedGroup, at_once=2, build=linear)
    close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_gpus_own_random_numbers_are_left_alone() -> None:
    torch.cuda.manual_seed(8)
    wanted = torch.rand(3, device=CUDA)
    torch.cuda.manual_seed(8)
    trained(ADAM, OverlappedGroup, build=linear)
    assert torch.equal(torch.rand(3, device=CUDA), wanted)


def test_a_site_that_fails_does_not_touch_the_others() -> None:
    task, seeds = problem(linear), Seeds(4)
    task.sites["b"].breaks_at = 7
    with Simulator(task, ADAM, seeds, device="cuda", workers=4) as simulator:
        first, _ = task.initial(seeds)
        w = Model(first.values.cuda(), first.counters.cuda())
        with pytest.raises(DataError, match="torn file"):
            Federation(simulator).local_train(1, w, T=5)
        task.sites["b"].breaks_at = 0
        found = Federation(simulator).local_train(1, w, T=5).w_k.values
    (wanted, *_), _ = trained(ADAM, ClientGroup, rounds=1, build=linear)
    torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-5)


def test_a_run_that_is_resumed_gives_the_same_numbers() -> None:
    whole, _ = trained(ADAM, OverlappedGroup, rounds=3, build=linear)
    values = whole[0][0]
    w = Model(values.mean(dim=0), whole[0][1][0])
    later, _ = trained(ADAM, OverlappedGroup, rounds=3, start=1, w=w, build=linear)
    close(later, whole[1:], rtol=1e-3, atol=1e-4)


def test_weights_are_learned_side_by_side() -> None:
    runs = []
    for group in (ClientGroup, OverlappedGroup):
        task, seeds, method = problem(linear), Seeds(4), AutoFedAvg(t0=1, S=6)
        with Simulator(task, ADAM, seeds, device="cuda") as simulator:
            made = group(simulator._groups[0]._clients)
            simulator._groups = [made]
            federation = Federation(simulator)
            w, layout = task.initial(seeds)
            start = Round(0, Model(w.values.cuda(), w.counters.cuda()))
            runs.append([r.alpha for r in method.rounds(federation, layout, 3, start)])
        if group is OverlappedGroup:
            assert all(len(lane.trainer._replays._recordings) > 1 for lane in made._lanes)
    for found, wanted in zip(*runs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
