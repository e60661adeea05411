"""A method's rounds over three clients with a toy network: what contract tests compare."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Model
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.port import Federation
from autofedavg.federation.proxy import Proxy
from autofedavg.methods import METHODS
from autofedavg.tasks.loaders import METRIC, LoaderData, LoaderSite

T = 4
SITES = ("A", "B", "C")


def loader(seed: int, cases: int, shuffle: bool = False) -> DataLoader:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(cases, 4, generator=draw)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0.2 * seed).long()), 4, shuffle=shuffle)


def norm_net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.2), torch.nn.Linear(5, 2)
    )


def plain_chain() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(5, 2)
    )


def norm_chain() -> torch.nn.Module:
    """A network in which neither chance nor rounding tells equal sites apart.

    It has no dropout, and no bias before the normalisation: the gradient of that is rounding alone,
    which Adam makes as large as any other.
    """
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5, bias=False), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)
    )


NETWORKS = {"fedma": plain_chain}  # two layers: T is two passes
TRAINING = Training(epochs=1, learning_rate=0.05)


def problem(network, names=SITES, alike: bool = False) -> Problem:
    """Clients of different sizes; alike, all of them have the same batches."""

    def score(network, batch):
        return (network(batch[0]).argmax(1) == batch[1]).double()

    def site(n: int) -> LoaderSite:
        return LoaderSite(
            loader(n, 4 * (n + 1), not alike), loader(n + 5, 8), holdout=loader(n + 9, 8)
        )

    kinds = {name: 2 if alike else n for n, name in enumerate(names)}
    sites = {name: LoaderData(name, site(n), score) for name, n in kinds.items()}
    for name, n in kinds.items():
        sites[name].class_counts = lambda n=n: [n + 1, 3 * n + 3 - n**2]
    return Problem(
        network,
        lambda network, batch: cross_entropy(network(batch[0]), batch[1]),
        sites,
        METRIC,
        proxy=LoaderData("server", LoaderSite(loader(3, 12, True), loader(3, 12)), score),
    )


@dataclass(frozen=True)
class Kept(Round):
    """A round with what stays at the sites: digests, and a copy for a checkpoint."""

    at_sites: tuple = ()


def rounds(
    method,
    seed: int = 0,
    stop_after: int | None = None,
    state: Round | None = None,
    given: Problem | None = None,
    training: Training = TRAINING,
):
    """The rounds of a method, with models copied out of the simulator's memory."""
    given = given or problem(NETWORKS.get(method.name, norm_net))
    method.check_network(given.network(), T)
    with Simulator(given, training, Seeds(seed), workers=1) as transport:
        proxy = Proxy.of(given, training, Seeds(seed), transport.device)
        federation = Federation(transport, seeds=Seeds(seed), metric=METRIC, proxy=proxy)
        w, layout = given.initial(Seeds(seed))
        start = method.begin(federation, Round(0, w)) if state is None else state
        if state is not None:
            federation.resume_personal(deepcopy(state.at_sites[0]), state.at_sites[1])
        kept = []
        for done in islice(method.rounds(federation, layout, T, start), stop_after):
            held = done.w
            copy = (
                held.clone()
                if isinstance(held, Model)
                else Bank(held.sites, held.values.clone(), held.counters.clone(), held.form)
            )
            if done.personal:
                federation.evaluate(done.w, "validation", METRIC, personal=done.personal)
            at_sites = (deepcopy(federation.personal), federation.copies())
            kept.append(Kept(**vars(replace(done, w=copy, w_k=None)), at_sites=at_sites))
        return kept


def whole_bits(method) -> tuple[tuple, ...]:
    """Every round of a whole run, as `bits`; many tests compare with one and the same run."""
    return _whole_bits(method.name, method.model_dump_json(exclude_defaults=True))


@cache
def _whole_bits(name: str, settings: str) -> tuple[tuple, ...]:
    method = METHODS[name].model_validate_json(settings)
    return tuple(bits(state) for state in rounds(method))


def bits(state: Kept) -> tuple:
    numbers = [state.w.values, state.w.counters, state.alpha, state.beta, *state.memory.values()]
    return (
        state.w.form,
        state.at_sites[0],
        *state.memory,
        *(None if n is None else n.numpy().tobytes() for n in numbers),
    )
