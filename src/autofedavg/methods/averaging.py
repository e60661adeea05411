"""FedAvg's loop with another aggregation: what all methods that only change the server share.

Notation: w is the global model before the round, w_k the clients' after it, Delta_k = w_k - w,
p_k = n_k/n, and w_bar = sum_k p_k w_k. Server steps move the trainable part of the model alone;
buffers are averaged with p_k (decision 6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from autofedavg.algorithm import Round, among
from autofedavg.core.bank import Bank, Gram, Layers, Layout, Model
from autofedavg.federation.local_training import Along, Trained
from autofedavg.federation.port import Federation
from autofedavg.methods.base import Method, size_weights


@dataclass
class Aggregation:
    """One round at the server, after LocalTrain.

    Attributes:
        federation: the clients.
        layout: the network's layout.
        t: the round.
        T: the last round.
        w: the global model that the clients started from.
        trained: what those that replied have trained and told.
        fixed: (K,), the weights of all clients that FedAvg would use.
        memory: the method's state, kept over rounds; tensors on the CPU or the models' device.
        alpha: (K,) or (K, P), the weights of all clients to be recorded.
    """

    federation: Federation
    layout: Layout
    t: int
    T: int
    w: Model
    trained: Trained
    fixed: Tensor
    memory: dict[str, Tensor] = field(default_factory=dict)
    alpha: Tensor | None = None

    @property
    def w_k(self) -> Bank:
        return self.trained.w_k

    @cached_property
    def p(self) -> Tensor:
        """FedAvg's weights of the clients that replied; they sum to one."""
        return among(self.fixed, self.federation, self.w_k)

    @cached_property
    def rows(self) -> Tensor:
        """The positions, among all K clients, of those that replied."""
        return torch.tensor(self.federation.rows(self.w_k.sites))

    @cached_property
    def mean(self) -> Model:
        """w_bar: FedAvg's result."""
        return self.w_k.combine(self.p)

    @cached_property
    def move(self) -> Tensor:
        """Delta_bar = w_bar - w over the trainable part, (D',)."""
        end = self.layout.trainable
        return self.mean.values[:end] - self.w.values[:end]

    def gram(self, layers: Layers | None = None) -> Gram:
        """Inner products of the Delta_k with each other and with w."""
        return self.w_k.gram(self.w, self.layout.trainable, layers)

    def told(self, numbers: Mapping[str, float]) -> Tensor:
        """A number of each client that replied, as a vector in the order of the bank."""
        return torch.tensor([numbers[name] for name in self.w_k.sites], dtype=torch.float64)

    def weighted(self, weights: Tensor, layers: Layers | None = None) -> Model:
        """sum_k weights_k w_k, which the round records as alpha; absent clients have none."""
        self.record(weights)
        return self.w_k.combine(weights, layers)

    def record(self, weights: Tensor) -> None:
        """Records the weights of those that replied; those of absent clients are 0."""
        whole = torch.zeros(self.federation.K, *weights.shape[1:], dtype=torch.float64)
        self.alpha = whole.index_copy(0, self.rows, weights.to("cpu", torch.float64))

    def trained_part(self, values: Tensor) -> Model:
        """w_bar with other values of its trainable part."""
        merged = self.mean.values.clone()
        merged[: self.layout.trainable] = values
        return Model(merged, self.mean.counters)

    def step(self, move: Tensor) -> Model:
        """The model w + move, written around w_bar: a step of Delta_bar has FedAvg's bits."""
        return self.trained_part(self.mean.values[: self.layout.trainable] + (move - self.move))

    def mixed(self, weights: Tensor) -> Model:
        """The model w + sum_k weights_k Delta_k; the weights need not sum to one.

        Those recorded do.
        """
        self.record(weights / weights.sum())
        left, end = 1.0 - float(weights.sum()), self.layout.trainable
        values = self.w_k.combine(weights).values[:end]
        if abs(left) > 1e-12:  # what is left by rounding is nothing of w
            values = values + left * self.w.values[:end]
        return self.trained_part(values)


class AveragingMethod(Method):
    """LocalTrain from one global model, then `aggregate`: FedAvg unless a subclass says else."""

    def fixed_weights(self, federation: Federation, t: int) -> Tensor:
        """FedAvg's weights of all K clients in round t."""
        return size_weights(federation)

    def along(self, federation: Federation, layout: Layout, memory: dict[str, Tensor]) -> Along:
        """The vectors that are sent with the model, by name."""
        return {}

    def aggregate(self, at: Aggregation) -> Model:
        """The next global model; `at.memory` is changed in place."""
        return at.mean

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        w, memory = cast(Model, start.w), dict(start.memory)
        request = self.local(layout)
        for t in range(start.t + 1, T + 1):
            along = self.along(federation, layout, memory)
            trained = federation.local_train(t, w, T=T, request=request, along=along)
            here = trained.w_k.values.device  # w^0 is drawn on the CPU
            w = Model(w.values.to(here), w.counters.to(here), w.form)
            fixed = self.fixed_weights(federation, t)
            at = Aggregation(federation, layout, t, T, w, trained, fixed, memory, fixed)
            w = federation.as_sent(self.aggregate(at))
            memory = dict(at.memory)
            kept = request.rule if request.rule.keeps else None
            state = Round(t, w, None, at.alpha, trained.w_k, trained.losses, personal=kept)
            yield replace(state, memory=dict(memory))
