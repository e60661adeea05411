"""Steps recorded on a real GPU do what the same steps do one by one."""

import pytest
import torch
from torch import nn

from autofedavg.core.bank import Model
from autofedavg.core.cuda_graphs import Replays
from autofedavg.core.seeds import global_seed
from autofedavg.core.trainer import LocalTrainer, Training

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")
TRAININGS = {
    "adam": Training(betas=(0.5, 0.99), weight_decay=0.01),
    "sgd": Training(optimiser="sgd", weight_decay=0.01),
    "plain sgd": Training(optimiser="sgd", momentum=0.0),
    "bf16": Training(precision="bf16"),
}


def network(dropout=0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.PReLU(), nn.Dropout(dropout),
        nn.Conv3d(8, 8, 3, stride=2, padding=1), nn.BatchNorm3d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 64, 1),
    )  # fmt: skip


def squared(net, batch):
    return (net(batch[0]).float() - batch[1]).square().mean()


def batches(n=9, size=4):
    random = torch.Generator().manual_seed(n)
    for k in range(n):
        rows = size - (k % 3 == 2)  # every third is a short one
        x = torch.randn(rows, 1, 8, 8, 8, generator=random)
        yield x.to(CUDA), x.mean((1, 2, 3, 4)).reshape(-1, 1).to(CUDA)


def bench(training, steady, dropout=0.0) -> LocalTrainer:
    return LocalTrainer(network(dropout), squared, training, CUDA, steady)


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_two_rounds_of_two_clients(training, mu) -> None:
    found = []
    for steady in (False, True):
        made = bench(training, steady)
        start = made.model()
        for rate in (0.01, 0.003):
            for n in (9, 12):
                made.load(start)
                losses = made.train(batches(n), rate, mu=mu)
                found.append((losses.clone(), made.model()))
        if steady:
            assert len(made._replays._recordings) == 2
    for (losses, model), (wanted, exact) in zip(found[4:], found[:4], strict=True):
        torch.testing.assert_close(losses, wanted, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(model.values, exact.values, rtol=1e-3, atol=1e-4)
        assert torch.equal(model.counters, exact.counters)


def test_gradients_at_other_models() -> None:
    plain, steady = bench(TRAININGS["adam"], False), bench(TRAININGS["adam"], True)
    w = plain.model()
    for k, batch in enumerate(batches(12)):
        model = Model(w.values * (1 + 0.01 * k), w.counters)
        wanted, loss = plain.differentiate(model, batch, "eval")
        found, ours = steady.differentiate(model, batch, "eval")
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, loss)
    assert steady._replays._recordings


def test_dropout_follows_the_seed() -> None:
    made = bench(TRAININGS["adam"], True, dropout=0.5)
    start, runs = made.model(), []
    for seed in (1, 1, 1, 2):
        made.load(start)
        with global_seed(seed, CUDA):
            runs.append(made.train(batches(12), 0.01))
    torch.testing.assert_close(runs[2], runs[1])
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(runs[3], runs[2], rtol=1e-2)


def test_a_step_that_asks_for_a_number_is_not_recorded() -> None:
    replays = Replays(CUDA)
    x = torch.ones(3, device=CUDA)

    def asks(batch):
        return batch[0].sum() * float(batch[0].max())

    for _ in range(6):
        assert float(replays.step("train", (x,), asks)) == 3.0
    assert not replays._recordings
