"""One resident network whose whole state is one vector: loading a client's model is one copy.

Parameters, their gradients and floating buffers are views of two flat tensors, and the optimiser
works on the flat parameter vector, so nothing is built per client or per round.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from autofedavg.core.bank import Layout, Model
from autofedavg.core.cuda_graphs import Replays
from autofedavg.core.flat_optimiser import FlatOptimiser
from autofedavg.core.forms import Form, reshaped
from autofedavg.core.layout import no_counters
from autofedavg.core.privacy import PrivateBatch
from autofedavg.core.redrawn import redrawn
from autofedavg.core.settings import Settings, setting

Batch = Any
Loss = Callable[[nn.Module, Batch], Tensor]


class Training(Settings):
    """How a client trains its local model: LocalTrain of Algorithm 1."""

    epochs: int = setting(
        0, origin="ours", help="passes over the local data a round, instead of iterations", ge=0
    )
    iterations: int = setting(
        lambda known: 0 if known.get("epochs") else 300,
        origin="paper Sec. 4.2.1",
        help="M_k, local steps a round; 0 when epochs are given",
        ge=0,
    )
    batch_size: int = setting(4, origin="paper Sec. 4.2.1", help="cases in a batch", ge=1)
    optimiser: Literal["adam", "sgd"] = setting(
        "adam", origin="paper Sec. 4.2.1", help="local optimiser, restarted every round"
    )
    learning_rate: float = setting(1e-4, origin="paper Sec. 4.2.1", help="local step size", gt=0)
    betas: tuple[float, float] = setting(
        (0.5, 0.99), origin="paper Sec. 4.2.1", help="Adam's two decay rates"
    )
    momentum: float = setting(0.9, origin="derived from FedMA's code", help="SGD's momentum", ge=0)
    weight_decay: float = setting(0.0, origin="paper Sec. 4.2.1", help="L2 penalty", ge=0)
    schedule: Literal["constant", "cosine"] = setting(
        "constant", origin="paper Sec. 4.2.1", help="step size over the rounds"
    )
    precision: Literal["float32", "bf16"] = setting(
        "float32", origin="ours", help="arithmetic of forward and backward"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Training:
        if bool(self.epochs) == bool(self.iterations):
            raise ValueError("set either iterations or epochs, the other one to 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie between 0 and 1, not {self.betas}")
        return self

    def rate(self, t: int, T: int) -> float:
        """The step size of round t of T."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (t - 1) / T))

    def changed(self, rate: float, passes: int, weight_decay: float | None) -> Training:
        """The same training with another step size (a factor), length (a factor) and penalty."""
        decay = self.weight_decay if weight_decay is None else weight_decay
        return self.model_copy(
            update={
                "learning_rate": self.learning_rate * rate,
                "epochs": self.epochs * passes,
                "iterations": self.iterations * passes,
                "weight_decay": decay,
            }
        )


class LocalTrainer:
    """A network, its flat state and its optimiser, used by every client of a worker in turn.

    On a GPU, a `steady` network's steps (see `Problem`) are recorded and replayed.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        training: Training,
        device: torch.device,
        steady: bool = False,
    ) -> None:
        self.network = network.to(device).train()
        self.loss_of = loss
        self.device = device
        self.training = training
        self.layout = Layout.of(self.network)
        self.flat = self.layout.read(self.network).values
        self.gradient = torch.zeros(self.layout.trainable, dtype=self.layout.dtype, device=device)
        self._counters = self._bind()
        self._weights = self.flat[: self.layout.trainable]
        self.recorded = steady and device.type == "cuda"
        self.launched: Callable[[], None] | None = None  # called while a gradient is under way
        self._replays = Replays(device) if self.recorded else None
        self._places: dict[str, Tensor] = {}
        self._optimiser = self.optimiser(self._weights)
        self._variant: LocalTrainer | None = None
        self._variant_form: Form | None = None

    def variant(self, form: Form | None, training: Training | None = None) -> LocalTrainer:
        """This trainer, or one for another form or training; the latest other one is kept."""
        wanted = self.training if training is None else training
        if form is None and (wanted is self.training or wanted == self.training):
            return self
        kept = self._variant
        if kept is None or self._variant_form != form or kept.training != wanted:
            network = copy.deepcopy(self.network) if form is None else reshaped(self.network, form)
            kept = self._variant = LocalTrainer(
                network, self.loss_of, wanted, self.device, self.recorded
            )
            self._variant_form = form
        return kept

    def optimiser(self, weights: Tensor) -> FlatOptimiser:
        """The task's optimiser for a vector (D',), by the gradients that are found here."""
        return FlatOptimiser(
            self.training.optimiser,
            weights,
            self.gradient,
            betas=self.training.betas,
            momentum=self.training.momentum,
            weight_decay=self.training.weight_decay,
            in_place=self.recorded,
        )

    def drawn(self) -> Model:
        """A model of new initial weights, from PyTorch's global generator."""
        return self.layout.read(redrawn(self.network))

    def load(self, model: Model) -> None:
        """Puts a model into the network."""
        self.flat.copy_(model.values)
        if self._counters:
            sizes = [counter.numel() for counter in self._counters]
            for counter, piece in zip(
                self._counters, torch.split(model.counters, sizes), strict=True
            ):
                counter.copy_(piece.reshape(counter.shape))

    def model(self) -> Model:
        """The network's state as a new model."""
        return self.state().clone()

    def state(self) -> Model:
        """The network's state, not copied: valid until the network is used again."""
        whole = [counter.reshape(-1).to(torch.int64) for counter in self._counters]
        return Model(self.flat, torch.cat(whole) if whole else no_counters(self.device))

    def train(
        self,
        batches: Iterable[Batch],
        rate: float,
        *,
        mu: float = 0.0,
        anchor: Tensor | None = None,
        shift: Tensor | None = None,
        mean_gradient: bool = False,
        after: Callable[[Batch], None] | None = None,
    ) -> Tensor:
        """Takes one optimiser step per batch, from a fresh optimiser state.

        Every step's gradient is grad L(w) + mu (w - anchor) + shift.

        Args:
            batches: the M_k batches; a `PrivateBatch` makes its step differentially private.
            rate: the step size.
            mu: the pull towards the anchor, as of (mu/2)||w - anchor||^2.
            anchor: (D',); the model that training starts from by default (FedProx).
            shift: (D',), added to every gradient (SCAFFOLD).
            mean_gradient: whether `mean_gradient` is asked for afterwards.
            after: called after every step with its batch; it must leave the network as it was.

        Returns:
            The loss of every step, on the device (so that nothing waits inside the loop).
        """
        self._set_mode(train=True)
        self._optimiser.restart(rate)
        pull = self._fixed("anchor", self._weights if anchor is None else anchor) if mu else None
        push = None if shift is None else self._fixed("shift", shift)
        total = self._fixed("total", torch.zeros_like(self.gradient)) if mean_gradient else None

        def step(batch: Batch) -> Tensor:
            loss = self._backward(batch)
            if total is not None:
                total.add_(self.gradient)
            if pull is not None:
                self.gradient.add_(self._weights - pull, alpha=mu)
            if push is not None:
                self.gradient.add_(push)
            self._optimiser.step()
            return loss

        kind = ("train", mu, push is not None, mean_gradient)
        losses = []
        for batch in batches:
            losses.append(self._done(kind, batch, step))
            if after is not None:
                after(batch)
        if total is not None and losses:
            total.div_(len(losses))
        if len(losses) == 1:
            return losses[0].reshape(1)
        return torch.stack(losses) if losses else torch.empty(0)

    def mean_gradient(self) -> Tensor:
        """The mean of the gradients of the last `train` that was to keep it, (D',)."""
        return self._places["total"].clone()

    def differentiate(
        self, model: Model, batch: Batch, mode: Literal["eval", "train"]
    ) -> tuple[Tensor, Tensor]:
        """Grad L(w; x) at a given model: (gradient (D',), loss). The gradient is reused."""
        self.load(model)
        self._set_mode(train=mode == "train")
        loss = self._done(mode, batch, self._backward)
        if self.launched is not None:
            self.launched()
        return self.gradient, loss

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """The loss of a model, as it predicts."""
        return self.applied(self.loss_of, model, batch)

    def applied(self, what: Loss, model: Model, batch: Batch) -> Tensor:
        """`what(network, batch)` of a model, as it predicts."""
        self.load(model)
        self._set_mode(train=False)
        with torch.no_grad(), self._arithmetic():
            return what(self.network, batch).detach()

    def _done(self, kind: Hashable, batch: Batch, step: Callable[[Batch], Tensor]) -> Tensor:
        """One step's loss; the step is replayed where it can be."""
        if self._replays is None or isinstance(batch, PrivateBatch):
            return step(batch)
        return self._replays.step(kind, batch, step)

    def _fixed(self, name: str, content: Tensor) -> Tensor:
        """The content in a place of its own, the same every time: a recorded step reads it."""
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = torch.empty_like(self.gradient)
        return place.copy_(content)

    def _set_mode(self, *, train: bool) -> None:
        # Setting it walks every module, which is slow where a client takes only a few small steps.
        if self.network.training != train:
            self.network.train(train)

    def _backward(self, batch: Batch) -> Tensor:
        if isinstance(batch, PrivateBatch):
            one = partial(self._done, "patient", step=self._backward)
            return batch.backward(one, self.gradient)
        self.gradient.zero_()
        with self._arithmetic():
            loss = self.loss_of(self.network, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _arithmetic(self) -> AbstractContextManager[Any]:
        if self.training.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _bind(self) -> list[Tensor]:
        """Makes the network's tensors views of the flat ones; returns its integer buffers."""
        named = dict(self.network.named_parameters())
        owners = dict(self.network.named_modules())
        for entry in self.layout.entries:
            view = self.flat[entry.start : entry.stop].view(entry.shape)
            if entry.name in named:
                parameter = named[entry.name]
                parameter.data = view
                if entry.stop <= self.layout.trainable:
                    parameter.grad = self.gradient[entry.start : entry.stop].view(entry.shape)
            else:
                owner, _, leaf = entry.name.rpartition(".")
                owners[owner]._buffers[leaf] = view
        buffers = dict(self.network.named_buffers())
        return [buffers[name] for name, _ in self.layout.counters]
