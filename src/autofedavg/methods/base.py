"""What a method is: settings that can run T rounds on a federation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model, model_for
from autofedavg.core.errors import ConfigError
from autofedavg.core.settings import Settings
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Training
from autofedavg.federation.local_training import LocalRequest
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange, Reach

Family = Literal[
    "averaging",
    "robust",
    "server step",
    "local correction",
    "weights from losses and counts",
    "weights from geometry",
    "learned weights",
    "personal",
    "server data",
    "control",
]


@dataclass(frozen=True)
class About:
    """What `list methods` and docs/methods.md say of a method.

    Attributes:
        family: what kind it is; reports group rows by it.
        paper: authors, year and venue.
        rule: the rule in one line.
        fedavg: when it equals FedAvg.
        use: when to use it.
        needs: what it needs besides training cases.
        keeps: what server and sites remember between rounds, in vectors of a model's length.
    """

    family: Family
    paper: str
    rule: str
    fedavg: str
    use: str
    needs: str = ""
    keeps: str = ""


class Method(Settings):
    """A frozen set of settings with one verb; subclasses add a `name` and override `rounds`."""

    about: ClassVar[About | None] = None
    needs_proxy: ClassVar[bool] = False  # whether it needs data at the server
    needs_losses: ClassVar[bool] = False  # whether it weighs clients by their training losses
    one_network: ClassVar[bool] = True  # whether all w_k are models of the task's network

    @property
    def learns_on(self) -> str | None:
        """The split that the aggregation weights are learned on, if any."""
        return None

    @property
    def needs_all(self) -> bool:
        """Whether every client must answer every call, whatever the quorum."""
        return False

    @property
    def models_reach(self) -> Reach:
        """Who receives a client's own model during training, alone or in several mixtures."""
        return "server"

    @property
    def mixes_models(self) -> bool:
        """Whether a client's own model reaches other sites in mixtures alone."""
        return False

    @property
    def shows_models(self) -> bool:
        """Whether the server sees each client's own model; where not, none of them is scored."""
        return self.models_reach != "nobody"

    def check(self, sites: int) -> None:
        """Refuses a federation this method cannot work with."""
        if sites < 1:
            raise ConfigError("there is no site", where="method", remedy="add a site")

    def check_exchange(self, exchange: Exchange, quorum: int, sites: int) -> None:
        """Refuses encodings and quorums that this method cannot work with."""

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        """Why, with these sites, network and training, it must equal FedAvg; nothing if not."""
        return ""

    def unsuited(self, training: Training, T: int) -> str:
        """Why it works badly with this local training and T rounds; nothing if it does not."""
        return ""

    def cautions(self, sites: int) -> list[str]:
        """What to know before running it between institutions, in whole sentences."""
        return []

    def check_network(self, network: nn.Module, T: int) -> None:
        """Refuses a network, or a number of rounds for it, that this method cannot work with."""

    def models_validated(self, sites: int) -> int:
        """Models of the one predictor that every site validates."""
        return 1

    def sketched_bytes(self, layout: Layout) -> int:
        """Bytes that a sum of gradients moves per client, both ways, where there is one."""
        return 0

    def ways_of_learning(
        self, layout: Layout, T: int, sites: int, exchange: Exchange
    ) -> dict[str, float]:
        """Traffic of learning the weights in each way, over FedAvg's; nothing without a choice."""
        return {}

    def layer_names(self, layout: Layout) -> tuple[str, ...]:
        """The layers that alpha has a weight each for; empty with one weight per client."""
        return ()

    def local(self, layout: Layout) -> LocalRequest:
        """What it asks of LocalTrain besides the model: its local rule, and what is to be told."""
        return LocalRequest()

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        """What round t asks of a client: a site on another machine answers this and no more.

        Returns:
            By call, the plain values of each of its messages, without `t`, `T` and what the port
            adds; `evaluate` where there is one predictor for all sites to validate.
        """
        request = self.local(layout)
        own = {"personal": request.rule.note()} if request.rule.keeps else {}
        return {"local_train": [request.facts()], "evaluate": [own]}

    def calls(self, T: int, layout: Layout) -> Counter[str]:
        """How many messages each call sends a client in T rounds."""
        asked = (self.asks(t, T, layout) for t in range(1, T + 1))
        return sum((Counter({k: len(v) for k, v in one.items()}) for one in asked), Counter())

    def begin(self, federation: Federation, start: Round) -> Round:
        """The state round 1 starts from, given w^0."""
        return start

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        """Yields the rounds after `start` up to T."""
        raise NotImplementedError


def size_weights(federation: Federation) -> Tensor:
    """alpha_k = n_k / n, n_k being training cases (decision 8)."""
    n = torch.tensor([site.cases["train"] for site in federation.sites], dtype=torch.float64)
    return n / n.sum()


def even_weights(federation: Federation) -> Tensor:
    """alpha_k = 1 / K."""
    return torch.full((federation.K,), 1 / federation.K, dtype=torch.float64)


def weights_by(what: Literal["size", "even"], federation: Federation) -> Tensor:
    """The weights of a setting: n_k/n or 1/K."""
    return size_weights(federation) if what == "size" else even_weights(federation)


def own_models(federation: Federation, w: Model | Bank) -> Bank:
    """A bank that gives every client the model it goes on from."""
    return Bank.gather({name: model_for(w, name) for name in federation.names})


def train_alone(
    federation: Federation, T: int, start: Round, *, fresh: bool = False, together: bool = False
) -> Iterator[Round]:
    """w_k^t = LocalTrain(k, w_k^{t-1}): nothing is averaged.

    Args:
        federation: the clients.
        T: the last round.
        start: the state to go on from; its w is a bank.
        fresh: whether round 1 starts from initial weights of each client's own.
        together: whether the bank is one predictor.
    """
    w = start.w
    for t in range(start.t + 1, T + 1):
        how: Facts = {"fresh": True} if fresh and t == 1 else {}
        trained = federation.local_train(t, w, T=T, **how)
        w_k = trained.w_k
        w = w_k if len(w_k.sites) == federation.K else _with_absent(federation, w_k, w)
        yield Round(t, w, w_k=w_k, losses=trained.losses, together=together)


def _with_absent(federation: Federation, w_k: Bank, before: Model | Bank) -> Bank:
    """All K models: a client that sat out a round goes on later from what it had."""
    rows = {
        name: model_for(w_k if name in w_k.sites else before, name) for name in federation.names
    }
    return Bank.gather(rows)
