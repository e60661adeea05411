"""The server's own data: a trainer outside the roster, for FedDF, FedBE and FLTrust.

What it does depends on the run's seed, the round and the models it is given; it remembers nothing,
so a resumed run gives the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofedavg.core.bank import Model
from autofedavg.core.errors import ConfigError
from autofedavg.core.problem import SERVER, LocalData, Logits, Problem
from autofedavg.core.seeds import Seeds, global_seed
from autofedavg.core.trainer import Batch, LocalTrainer, Training
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, arrays_of, model_of


class Proxy:
    """Data at the server with a network of its own.

    Args:
        data: the server's cases, of which it uses the split "train".
        trainer: network and loss, for this data alone.
        logits: (network, batch) -> class logits.
        seeds: the run's random streams.
    """

    def __init__(
        self, data: LocalData, trainer: LocalTrainer, logits: Logits, seeds: Seeds
    ) -> None:
        self._client = Client(SERVER, data, trainer, seeds, ClientState())
        self._logits = logits

    @classmethod
    def of(
        cls, problem: Problem, training: Training, seeds: Seeds, device: torch.device
    ) -> Proxy | None:
        """The proxy of a problem; None where the server has no data."""
        if problem.proxy is None:
            return None
        with global_seed(0):
            network = problem.network()
        trainer = LocalTrainer(network, problem.loss, training, device, problem.steady)
        return cls(problem.proxy, trainer, problem.logits, seeds)

    def train(self, t: int, T: int, w: Model) -> Model:
        """LocalTrain from w on the server's data, as a client of round t would do it."""
        reply = self._client.answer("local_train", Message(arrays_of(w), {"t": t, "T": T}))
        return model_of(reply.arrays)

    def batches(self, t: int, steps: int) -> Iterator[Batch]:
        """Training batches of round t, as many as steps; the same ones whenever asked."""
        training = self._client.trainer.training
        changed = training.model_copy(update={"iterations": steps, "epochs": 0})
        return self._client.data.train_batches(self._client.seeds, t, changed)

    def logits(self, w: Model, batch: Batch) -> Tensor:
        """The class logits (B, C, ...) of a model as it predicts; C is at least 2."""
        return self._student.applied(self._class_logits, w, batch)

    def divergence(self, w: Model, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """KL(target || model), the mean over cases, pixels or voxels: (gradient (D',), value).

        The network is in evaluation mode: dropout is off, and batch normalisation uses the
        statistics in w, which do not change. The gradient is reused.
        """
        return self._student.differentiate(w, (batch, target), "eval")

    @cached_property
    def _student(self) -> LocalTrainer:
        """A second network, whose loss is the divergence."""
        own = self._client.trainer

        def loss(network: nn.Module, given: tuple[Batch, Tensor]) -> Tensor:
            found = functional.log_softmax(self._class_logits(network, given[0]), dim=1)
            return functional.kl_div(found, given[1], reduction="none").sum(dim=1).mean()

        return LocalTrainer(copy.deepcopy(own.network), loss, own.training, own.device)

    def _class_logits(self, network: nn.Module, batch: Batch) -> Tensor:
        found: object = self._logits(network, batch)  # a user's function may return anything
        if not isinstance(found, Tensor) or found.ndim < 2 or not found.is_floating_point():
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"the network's outputs are no class logits (batch, classes, ...): {shape}",
                where="logits",
                remedy="give a function logits(network, batch) that returns class logits",
            )
        found = found.float() if found.dtype in (torch.bfloat16, torch.float16) else found
        if found.shape[1] > 1:
            return found
        return torch.cat([torch.zeros_like(found), found], dim=1)  # a sigmoid is such a softmax
