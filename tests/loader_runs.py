"""Runs of `federate` over two sites with data loaders, in seconds."""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import LoaderSite, Machine, Training, federate
from autofedavg.methods import METHODS

T = 4


def loader(seed: int, *, shuffle: bool = False, contrary: bool = False) -> DataLoader:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(24, 4, generator=draw)
    y = (x[:, 0] > seed * 0.1).long()
    return DataLoader(TensorDataset(x, 1 - y if contrary else y), 6, shuffle=shuffle)


def train(
    out: Path, method, *, validation: bool = True, contrary: bool = False, rounds: int = T, **how
):
    """A run; with `contrary` validation labels the first model is the best one."""
    sites = {
        name: LoaderSite(
            loader(n, shuffle=True),
            loader(n + 5, contrary=contrary) if validation else None,
            loader(n + 9),
            loader(n + 13),
        )
        for n, name in enumerate("AB")
    }
    return federate(
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)),
        lambda network, batch: cross_entropy(network(batch[0]), batch[1]),
        sites,
        lambda network, batch: network(batch[0]).softmax(1)[torch.arange(6), batch[1]].double(),
        method=method,
        rounds=rounds,
        training=Training(epochs=1, learning_rate=0.03),
        out=out,
        machine=Machine(workers=1),
        **how,
    )


def train_fedbn(out: Path, rounds: int) -> None:
    """A run whose entries of batch normalisation stay at the sites."""
    train(out, METHODS["fedbn"](), rounds=rounds)
