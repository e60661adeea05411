"""The network, the data and the training loop: nothing here knows of learned weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CASES = {"north": 240, "south": 60, "harbour": 120}
WRONG = {"north": 0.0, "south": 0.0, "harbour": 0.45}  # part of its labels that are wrong


class Net(nn.Module):
    """A small classifier of two measurements."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def load_data(site: str) -> tuple[DataLoader[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    """A clinic's cases, to train and to validate on: measurements lie elsewhere in each."""
    generator = torch.Generator().manual_seed(len(site) + CASES[site])
    n = CASES[site]
    x = torch.randn(2 * n, 2, generator=generator) + torch.tensor([len(site) - 5.0, 0.0]) / 2
    y = (x[:, 0] * x[:, 1] > 0).long()
    flipped = torch.rand(n, generator=generator) < WRONG[site]
    y[:n] = torch.where(flipped, 1 - y[:n], y[:n])  # only among those it trains on
    train, validation = TensorDataset(x[:n], y[:n]), TensorDataset(x[n:], y[n:])
    return DataLoader(train, batch_size=20, shuffle=True), DataLoader(validation, batch_size=30)


def loss_of(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of a batch."""
    x, y = batch
    return nn.functional.cross_entropy(network(x), y)


def train(network: nn.Module, loader: DataLoader[tuple[Tensor, ...]], epochs: int = 5) -> float:
    """Trains a network; the mean loss of the last pass."""
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    network.train()
    for _ in range(epochs):
        losses = []
        for x, y in loader:
            optimiser.zero_grad()
            loss = loss_of(network, (x, y))
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)
