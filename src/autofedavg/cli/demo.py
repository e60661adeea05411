"""`python -m autofedavg`: the method in a few seconds, without images.

Three sites learn one small classifier; the labels of one of them are wrong. FedAvg weighs it by its
size; Auto-FedAvg learns from the sites' own validation data how little it should count.
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg.core.trainer import Training
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.base import Method
from autofedavg.methods.fedavg import FedAvg
from autofedavg.studies.federate import Result, federate
from autofedavg.studies.machine import Machine
from autofedavg.tasks.loaders import LoaderSite

ROUNDS = 12
SITES = {"A": 120, "B": 60, "C, labels shuffled": 240}


def demonstrate() -> dict[str, Result]:
    """Runs FedAvg and Auto-FedAvg on the three sites and prints what they did."""
    methods = {"FedAvg": FedAvg(), "Auto-FedAvg": AutoFedAvg()}
    results = {label: _run(method) for label, method in methods.items()}
    console = Console()
    for label, result in results.items():
        table = Table(title=f"{label}: weight of each site", title_justify="left")
        table.add_column("round", justify="right")
        for site in result.alpha:
            table.add_column(site)
        table.add_column("validation", justify="right")
        for line in result.rounds[:: max(1, ROUNDS // 4)]:
            bars = [f"{'█' * round(10 * a):<10} {a:.2f}" for a in line["alpha"]]
            table.add_row(str(line["t"]), *bars, f"{100 * line['validation']['mean']:.1f} %")
        console.print(table)
    console.print("Next: `autofedavg run demo`, or `autofedavg --help`.")
    return results


def _run(method: Method) -> Result:
    return federate(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        lambda network, batch: cross_entropy(network(batch[0]), batch[1]),
        {name: _site(name, cases) for name, cases in SITES.items()},
        lambda network, batch: (network(batch[0]).argmax(1) == batch[1]).double(),
        method=method,
        rounds=ROUNDS,
        training=Training(epochs=2, learning_rate=0.02),
        machine=Machine(workers=1),
    )


def _site(name: str, cases: int) -> LoaderSite:
    """Points of two classes; where the labels are shuffled, only those trained on are."""
    draw = torch.Generator().manual_seed(cases)
    wrong = "shuffled" in name

    def loader(count: int, spoil: bool) -> DataLoader[tuple[Tensor, ...]]:
        x = torch.randn(count, 8, generator=draw)
        y = (x[:, :4].sum(1) > x[:, 4:].square().sum(1) - 4).long()
        y = y[torch.randperm(count, generator=draw)] if spoil else y
        return DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)

    return LoaderSite(loader(cases, wrong), loader(80, False))
