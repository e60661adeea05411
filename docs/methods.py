"""Writes docs/methods.md from the registry: `python docs/methods.py`.

What a method says about itself is its `about`; what it sends is measured: every method trains a
toy network for a few rounds over three clients, and the port counts the bytes of every call.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank
from autofedavg.core.errors import ConfigError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.port import Federation
from autofedavg.methods import METHODS
from autofedavg.methods.base import Family, Method
from autofedavg.tasks.loaders import METRIC, LoaderData, LoaderSite

PAGE = Path(__file__).parent / "methods.md"
T, SITES, SEEDS = 6, "ABC", Seeds(0)  # FedMA takes three rounds for the toy network
WIDE = 192  # 157 kB a model: next to that, plain values of messages are small
HEAD = """# Methods

This page lists every method of the package. `python docs/methods.py` writes it from the registry.
A study names a method as `method = { name = "fedavg" }`, and [Settings](reference/settings.md) has
all settings. The study `methods-demo` runs them side by side on three generated hospitals:
`autofedavg run methods-demo`. [Which method should we use?](which-method.md) says what was found.

Notation: there are K sites. w is the global model before a round, w_k the model that site k trained
from it, and Delta_k = w_k - w. p_k = n_k/n is the site's share of all training cases. L_k is the
loss on the data of site k.

The columns:

- **Keeps**: what server and sites remember from round to round. A number counts vectors of a
  model's length. Empty: nothing.
- **Down** and **up**: traffic beyond FedAvg's, in models per site and round, with three sites and
  default settings. It is measured, and a test repeats the measurement. FedAvg itself sends two
  models down, one to train and one to validate, and one up.
- **Equals FedAvg**: when the result must be FedAvg's. `autofedavg check` says so where it knows
  this of a row in a study.

"""
INTRODUCTIONS: dict[str, str] = {
    "averaging": "Start here. FedAvg is the baseline of all other rows.",
    "robust": "These methods limit what one bad site can do to the global model.",
    "server step": "The mean update is a gradient to the server, whose optimiser takes a step.",
    "local correction": "These methods correct what differs between sites during local training.",
    "weights from losses and counts": "Sites send numbers, and the aggregation weights follow.",
    "weights from geometry": "Weights follow from the directions and lengths of the updates.",
    "learned weights": (
        "Aggregation weights are learned by gradient descent on the sites' own cases: validation "
        "cases in segmentation, training images on CIFAR-10."
    ),
    "personal": "Every site also gets a model of its own, which stays at the site.",
    "server data": "These methods need cases at the server.",
    "control": "Not to be deployed: a bound or a control for the others.",
}


class Sent(NamedTuple):
    """Models per site and round."""

    down: float
    up: float


class CountedData(LoaderData):
    """Loaders that know how many training cases each class has."""

    def class_counts(self) -> list[int]:
        return [4, 4]


def ours() -> dict[str, type[Method]]:
    """The methods of this package; other packages document their own."""
    found = {name: METHODS[name] for name in METHODS}
    return {name: kind for name, kind in found.items() if kind.__module__.startswith("autofedavg.")}


def problem(norm: bool) -> Problem:
    """Three clients with two classes, and a chain of three layers."""

    def network() -> nn.Module:
        first = [nn.Linear(4, WIDE), *([nn.BatchNorm1d(WIDE)] if norm else []), nn.ReLU()]
        return nn.Sequential(*first, nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, 2))

    def loader(seed: int, cases: int) -> DataLoader:
        x = torch.randn(cases, 4, generator=torch.Generator().manual_seed(seed))
        return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 4)

    def site(k: int) -> LoaderSite:
        return LoaderSite(loader(k, 8 * (k + 1)), loader(k + 5, 8), holdout=loader(k + 9, 8))

    def score(net: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return (net(batch[0]).argmax(1) == batch[1]).double()

    sites = {name: CountedData(name, site(k), score) for k, name in enumerate(SITES)}
    return Problem(network, lambda net, b: cross_entropy(net(b[0]), b[1]), sites, METRIC)


def with_proxy(given: Problem, training: Training) -> dict[str, Any]:
    """Data at the server, for the methods that need them; nothing of it is sent."""
    from autofedavg.federation.proxy import Proxy

    given = replace(given, proxy=given.sites["A"])
    return {"proxy": Proxy.of(given, training, SEEDS, torch.device("cpu"))}


def traffic(method: Method, norm: bool) -> Sent:
    """What the later half of T rounds sends, with the calls that a run makes after each."""
    given = problem(norm)
    method.check_network(given.network(), T)
    training = Training(epochs=1, learning_rate=0.05)
    with Simulator(given, training, SEEDS, workers=1) as transport:
        own = with_proxy(given, training) if getattr(method, "needs_proxy", False) else {}
        federation = Federation(transport, seeds=SEEDS, metric=METRIC, **own)
        w, layout = given.initial(SEEDS)
        start = method.begin(federation, Round(0, w))
        for done in method.rounds(federation, layout, T, start):
            if done.together or not isinstance(done.w, Bank):
                federation.evaluate(done.w, "validation", METRIC, t=done.t, personal=done.personal)
            federation.validate_local(done.t, done.w_k, METRIC)
            if done.t == T // 2:
                federation.take_account()  # what only the first rounds send is not counted
        costs = federation.take_account().values()
    whole = layout.nbytes * len(SITES) * (T - T // 2)
    return Sent(sum(cost.down for cost in costs) / whole, sum(cost.up for cost in costs) / whole)


@cache
def beyond_fedavg(name: str) -> Sent | None:
    """A method's traffic less FedAvg's on the same network; None where it cannot run here.

    A network with normalisation, unless the method needs a plain chain.
    """
    for norm in (True, False):
        try:
            mine, plain = traffic(METHODS[name](), norm), traffic(METHODS["fedavg"](), norm)
        except ConfigError:
            continue
        return Sent(mine.down - plain.down, mine.up - plain.up)
    return None


def shown(models: float) -> str:
    """A difference to a tenth of a model."""
    return f"{models:+.1f}" if abs(models) >= 0.05 else "0"


def table(heads: list[str], rows: list[list[str]]) -> str:
    cells = [[cell.replace("|", "\\|").replace("*", "\\*") for cell in row] for row in rows]
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines) + "\n"


def section(family: str, kinds: dict[str, type[Method]]) -> str:
    """A family: its rules with their traffic, and when to use them."""
    rules, uses = [], []
    for name, kind in kinds.items():
        about, sent = kind.about, beyond_fedavg(name)
        told = [shown(sent.down), shown(sent.up)] if sent else ["not measured"] * 2
        rules.append([f"`{name}`", about.paper, about.rule, about.keeps, *told])
        uses.append([f"`{name}`", about.use, about.needs, about.fedavg])
    return "\n".join(
        [
            f"## {family.capitalize()}\n",
            f"{INTRODUCTIONS[family]}\n",
            table(["Method", "Paper", "Rule", "Keeps", "Down", "Up"], rules),
            table(["Method", "Use it when", "Needs", "Equals FedAvg"], uses),
        ]
    )


def page() -> str:
    """The whole page."""
    kinds = ours()
    families = {
        family: {name: kind for name, kind in kinds.items() if kind.about.family == family}
        for family in get_args(Family)
    }
    parts = [section(family, members) for family, members in families.items() if members]
    return HEAD + "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
