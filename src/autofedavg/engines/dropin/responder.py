"""A site's side: answers requests with the site's own network, loss and batches."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from autofedavg import __version__
from autofedavg.core.errors import AutoFedAvgError, ConfigError, TrainingError, error_facts
from autofedavg.core.problem import CaseScore, LocalData
from autofedavg.core.seeds import Purpose, Seeds, every_seed
from autofedavg.core.trainer import Batch, LocalTrainer, Loss, Training
from autofedavg.engines.dropin.layouts import layout_values
from autofedavg.engines.dropin.transport import MODELS
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, model_of
from autofedavg.tasks.loaders import LoaderData, LoaderSite

log = logging.getLogger(__name__)

Batches = DataLoader[Any] | Callable[[int, int], Batch]


class BankState(ClientState):
    """What a site keeps while the weights are learned."""

    def forget(self) -> None:
        """Drops the models of the other sites."""
        self._bank = None


class Responder:
    """Answers for one site.

    Args:
        site: its name.
        network: of the site, with any weights; the learning uses a copy.
        loss: (network, batch) -> scalar.
        batches: a data loader over the cases that the weights are learned on, or a function
            (round, step) -> batch that returns the same batch for the same arguments.
        client_state: what is kept between requests; this process's memory by default.

    Raises:
        ConfigError: the network mixes types, or has nothing to train.
    """

    def __init__(
        self,
        site: str,
        network: nn.Module,
        loss: Loss,
        batches: Batches,
        client_state: BankState | None = None,
    ) -> None:
        self.site = site
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        copied = copy.deepcopy(network)
        copied.zero_grad(set_to_none=True)
        self._trainer = LocalTrainer(copied, loss, Training(), device)
        self._data = _data(site, batches)
        self._client_state = BankState() if client_state is None else client_state
        self._turn = threading.Lock()

    def answer(self, verb: str, message: Message) -> Message:
        """Answers a request; an error is a reply too, without the names of files."""
        verbs: dict[str, Callable[[Message], Message]] = {
            "hello": self._hello,
            "update_beta": lambda message: self._of_models(message, Client.update_beta),
            "mixture_losses": lambda message: self._of_models(message, Client.mixture_losses),
            "differentiate": lambda message: self._client(message).differentiate(message),
            "model_losses": lambda message: self._client(message).model_losses(message),
        }
        with self._turn:
            try:
                if verb not in verbs:
                    raise ConfigError(f"unknown request {verb!r}", where=f"client {self.site}")
                return verbs[verb](message)
            except (ConfigError, TrainingError) as error:
                log.exception("%s: %s", self.site, verb)
                return Message({}, error_facts(error))
            except Exception as error:
                log.exception("%s: %s", self.site, verb)
                ours = isinstance(error, AutoFedAvgError)
                place = verb if ours else "its network, loss or batches; see this site's own log"
                return Message({}, {"error": f"{type(error).__name__} in {place}"})

    def _hello(self, message: Message) -> Message:
        layout = layout_values(self._trainer.layout)
        return Message({}, {"site": self.site, "version": __version__, "layout": layout})

    def _of_models(self, message: Message, answer: Callable[[Client, Message], Message]) -> Message:
        """A reply from all models of the round, which may come with the request."""
        client = self._client(message)
        sent = message.facts.get(MODELS)
        if sent is not None:
            here = self._trainer.device
            models = {key: a.to(here) for key, a in message.arrays.items() if "/" in key}
            for site in sent["sites"]:
                if not self._trainer.layout.holds(model_of(models, site)):
                    raise ConfigError(
                        f"was sent a model of {site} that does not fit its network",
                        where=f"client {self.site}, round {message.facts['t']}",
                        remedy="give every site the same network",
                    )
            client.share_models(Message(models, sent))
        reply = answer(client, message)
        if not message.facts["keep"]:
            self._client_state.forget()
        return reply

    def _client(self, message: Message) -> Client:
        """The client with this run's seed, which comes with every request."""
        seeds = Seeds(int(message.facts["seed"]))
        return Client(self.site, self._data, self._trainer, seeds, self._client_state)


class _BatchFunction:
    """Data from a function of round and step; the engine itself trains and scores."""

    def __init__(self, site: str, batch: Callable[[int, int], Batch]) -> None:
        self._site, self._batch = site, batch

    def settle(self, device: torch.device) -> None:
        """Does nothing: the loss moves its batch."""

    def cases(self) -> Mapping[str, int]:
        return {}

    def weight_batch(self, seeds: Seeds, t: int, s: int, split: str, batch_size: int) -> Batch:
        with every_seed(seeds.number(self._site, Purpose.AGGREGATE_BATCHES, t, s)):
            return self._batch(t, s)

    def train_batches(self, seeds: Seeds, t: int, training: Training) -> Iterator[Batch]:
        raise NotImplementedError  # the site's own loop trains

    def score(self, network: nn.Module, split: str) -> list[CaseScore]:
        raise NotImplementedError  # and scores


def _data(site: str, batches: Batches) -> LocalData:
    if isinstance(batches, DataLoader):
        return LoaderData(site, LoaderSite(batches, batches), lambda network, batch: batch)
    if not callable(batches):
        raise ConfigError(
            f"batches is {type(batches).__name__}",
            where=f"site {site}",
            remedy="give a DataLoader, or a function (round, step) -> batch",
        )
    return _BatchFunction(site, batches)
