"""`federate`, called as a user calls it, over the same steps in a bare loop; pfl-research too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import LoaderSite, Machine, federate
from autofedavg.tasks.loaders import Loader
from bench import peer
from bench.rounds import BATCH, ENDLESS, FLOOR, FLOOR_TWICE, ONE, TWO, in_processes
from bench.table import Row, Section
from bench.timing import Run, Times, interleave, together
from bench.turns import Turn, in_turns
from bench.work import (
    MOMENTUM,
    RATE,
    BareLoop,
    Images,
    batch_sizes,
    cross_entropy,
    images,
    sgd,
    shares,
    small_cnn,
)

PLAIN, PLAIN_FLOOR = "federate, plain loaders", "bare loop over the same loaders"
PFL = "pfl-research"
LIMIT, LIMIT_TWICE = 1.05, 1.04


class Batches:
    """Rows of tensors, shuffled and a batch at a time: all that `federate` asks of a loader."""

    def __init__(self, cases: Images) -> None:
        self.dataset = cases[0]
        self._cases = cases

    def __len__(self) -> int:
        return -(-len(self.dataset) // BATCH)

    def __iter__(self) -> Iterator[Images]:
        images, labels = self._cases
        for part in torch.randperm(len(labels)).split(BATCH):
            yield images[part], labels[part]


def measure(cuts: tuple[int, ...], cases: int, sittings: int, repetitions: int) -> Section:
    """The section: the same work as in section 1, through `federate`."""
    data = images(cases)
    rows: list[Row] = []
    others = []
    for clients in cuts:
        times = together([_sitting(data, clients, repetitions) for _ in range(sittings)])
        rows += _rows(clients, times)
        others.append(times.others)
    missing = "" if find_spec("pfl") else f"{PFL}: not installed"
    return Section("11. A round of federate over the same steps in a bare loop", rows, max(others),
                   missing)  # fmt: skip


def plain(cases: Images) -> DataLoader[Images]:
    """A loader as everybody writes it: case by case."""
    return DataLoader(TensorDataset(*cases), batch_size=BATCH, shuffle=True)


def confidence(network: nn.Module, batch: Images) -> Tensor:
    """The probability of the right class."""
    return torch.softmax(network(batch[0]), dim=1).gather(1, batch[1].unsqueeze(1))


def play(
    data: Images, clients: int, loader: Callable[[Images], Loader], workers: int,
    turn: Turn,
) -> None:  # fmt: skip
    """A run of `federate` that takes a turn after every round."""
    sites = {
        f"site-{k:03d}": LoaderSite(train=loader(share), test=loader((share[0][:1], share[1][:1])))
        for k, share in enumerate(shares(data, clients))
    }
    federate(
        small_cnn,
        cross_entropy,
        sites,
        confidence,
        method="fedavg",
        rounds=ENDLESS,
        training=sgd(BATCH),
        select="last",
        machine=Machine(device="cpu", workers=workers, threads=1),
        watch=lambda seen: turn(),
    )


class LoaderLoop:
    """The bare loop over many clients' loaders."""

    def __init__(self, data: Images, clients: int) -> None:
        self._loaders = [plain(share) for share in shares(data, clients)]
        self._network = small_cnn().train()
        self._optimiser = torch.optim.SGD(self._network.parameters(), lr=RATE, momentum=MOMENTUM)

    def __call__(self) -> None:
        for loader in self._loaders:
            for batch in loader:
                self._optimiser.zero_grad()
                cross_entropy(self._network, batch).backward()
                self._optimiser.step()


def _sitting(data: Images, clients: int, repetitions: int) -> Times:
    sizes = batch_sizes(len(data[0]), clients, BATCH)
    half = len(sizes) // 2
    halves = [BareLoop(small_cnn(), data, part) for part in (sizes[:half], sizes[half:])]
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        runs: dict[str, Run] = {
            FLOOR_TWICE: enter(in_processes(halves)),
            ONE: enter(in_turns(partial(play, data, clients, Batches, 1))),
            TWO: enter(in_turns(partial(play, data, clients, Batches, 2))),
            PLAIN: enter(in_turns(partial(play, data, clients, plain, 1))),
        }
        if find_spec("pfl"):
            runs[PFL] = enter(in_turns(partial(peer.play, shares(data, clients), BATCH)))
        runs[FLOOR] = BareLoop(small_cnn(), data, sizes)
        runs[PLAIN_FLOOR] = LoaderLoop(data, clients)
        return interleave(runs, repetitions)


def _rows(clients: int, times: Times) -> list[Row]:
    rows = [
        Row(f"{clients} clients, federate, {ONE}", times.ratio(ONE, FLOOR), limit=LIMIT),
        Row(
            f"{clients} clients, federate, {TWO}, over the {FLOOR_TWICE}",
            times.ratio(TWO, FLOOR_TWICE),
            limit=LIMIT_TWICE,
        ),
        Row(f"{clients} clients, {PLAIN}, over a {PLAIN_FLOOR}", times.ratio(PLAIN, PLAIN_FLOOR)),
    ]
    if PFL in times.names:
        rows.append(Row(f"{clients} clients, {PFL}, {ONE}", times.ratio(PFL, FLOOR)))
    return rows
