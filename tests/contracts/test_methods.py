"""Every registered method passes this battery by being registered."""

import json
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import get_args

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Model
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.settings import origins
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.port import Federation
from autofedavg.federation.proxy import Proxy
from autofedavg.methods import METHODS
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.base import Family
from autofedavg.tasks.loaders import METRIC, LoaderData, LoaderSite
from method_changes import CHANGES

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


NETWORKS = {"fedma": plain_chain}  # two layers: T is two passes


def problem(network) -> Problem:
    def score(network, batch):
        return (network(batch[0]).argmax(1) == batch[1]).double()

    sites = {
        name: LoaderData(
            name,
            LoaderSite(loader(n, 4 * (n + 1), True), loader(n + 5, 8), holdout=loader(n + 9, 8)),
            score,
        )
        for n, name in enumerate(SITES)
    }
    for n, site in enumerate(sites.values()):
        site.class_counts = lambda n=n: [n + 1, 3 * n + 3 - n**2]
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


def rounds(method, seed: int = 0, stop_after: int | None = None, state: Round | None = None):
    """The rounds of a method, with models copied out of the simulator's memory."""
    given = problem(NETWORKS.get(method.name, norm_net))
    method.check_network(given.network(), T)
    training = Training(epochs=1, learning_rate=0.05)
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


def bits(state: Kept) -> tuple:
    numbers = [state.w.values, state.w.counters, state.alpha, state.beta, *state.memory.values()]
    return (
        state.w.form,
        state.at_sites[0],
        *state.memory,
        *(None if n is None else n.numpy().tobytes() for n in numbers),
    )


BLIND = {
    "auto-fedavg blind": {},
    "auto-fedavg blind by layer": {"weights": "layer", "constraint": "softmax", "sketch": 12},
}


@pytest.fixture(params=[*METHODS, *BLIND])
def method(request):
    if request.param in BLIND:
        return AutoFedAvg(learning="blind", **BLIND[request.param])
    return METHODS[request.param]()


def test_yields_every_round_with_finite_models_and_weights_on_the_simplex(method) -> None:
    done = rounds(method)
    assert [state.t for state in done] == [1, 2, 3, 4]
    for state in done:
        assert torch.isfinite(state.w.values).all()
        assert set(state.losses) == (set(SITES) if method.shows_models else set())
        if state.alpha is not None:
            assert state.alpha.min() >= 0
            torch.testing.assert_close(state.alpha.sum(0), torch.ones_like(state.alpha.sum(0)))


def test_same_seed_same_bits_and_another_seed_other_bits(method) -> None:
    assert bits(rounds(method)[-1]) == bits(rounds(method)[-1])
    assert bits(rounds(method)[-1]) != bits(rounds(method, seed=1)[-1])


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_going_on_from_any_round_gives_the_same_bits(method, stop) -> None:
    whole = rounds(method)
    first = rounds(method, stop_after=stop)
    rest = rounds(method, state=first[-1])
    assert [bits(state) for state in first + rest] == [bits(state) for state in whole]


def test_every_setting_has_an_origin_and_the_settings_survive_json(method) -> None:
    for path, _, origin, text in origins(method):
        if path != "name":
            kinds = {"study"} if path in method.model_fields_set else {"paper", "derived", "ours"}
            assert origin.split()[0].rstrip(":") in kinds, path
            assert text, path
    assert type(method).model_validate_json(method.model_dump_json()) == method
    assert json.loads(method.model_dump_json())["name"] in METHODS


def test_it_says_what_it_is_and_when_to_use_it(method) -> None:
    """Ours must; methods of other packages may."""
    if not type(method).__module__.startswith("autofedavg."):
        pytest.skip("a method of another package")
    about = type(method).about
    assert about is not None
    assert about.family in get_args(Family)
    assert all((about.paper, about.rule, about.fedavg, about.use))
    for text in asdict(about).values():
        assert text == text.strip()
        assert "\n" not in text
        assert not text.endswith(".")


def test_every_setting_is_tried_below() -> None:
    assert set(CHANGES) == set(METHODS)
    for name, changes in CHANGES.items():
        tried = {key for change in changes for key in change}
        assert tried == set(METHODS[name].model_fields) - {"name"}


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name, changes in CHANGES.items() for change in changes],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
def test_every_setting_changes_the_result(name, change) -> None:
    base = {key: value for key, value in change.items() if key == "weights" and len(change) > 1}
    assert bits(rounds(METHODS[name](**change))[-1]) != bits(rounds(METHODS[name](**base))[-1])
