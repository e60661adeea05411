"""APFL: a mixture of the global and a model of its own at every site (Deng et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.local_rules import Kept, LocalRule, LocalWork, kept_arrays, kept_model
from autofedavg.core.seeds import Stream
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Batch, LocalTrainer
from autofedavg.federation.local_training import LocalRequest
from autofedavg.methods.averaging import AveragingMethod
from autofedavg.methods.base import About


def mixed(v: Model, w: Model, a: float) -> Model:
    """The model m = a v + (1 - a) w, buffers as well; w itself for a = 0, v for a = 1."""
    counters = v.counters if a else w.counters
    return Model(torch.lerp(w.values, v.values.to(w.values), a), counters)


class Mixed(LocalRule):
    """Besides w_k, v_k takes a step with the gradient a grad L(m) after every one of w_k's."""

    name: Literal["apfl"] = "apfl"
    keeps: ClassVar[bool] = True
    mix: float = Field(ge=0, le=1)
    adaptive: bool

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        end, own = network.layout.trainable, work.own()
        v = Model(own.values.to(network.flat, copy=True), own.counters.to(network.device).clone())
        optimiser = network.optimiser(v.values[:end])
        optimiser.restart(work.rate)
        stream = Stream(work.seeded, network.device)
        a, learns = self.mix if work.kept is None else float(work.kept["a"]), self.adaptive

        def beside(batch: Batch) -> None:
            nonlocal a, learns
            w_k = network.model()
            with stream():
                gradient, _ = network.differentiate(mixed(v, w_k, a), batch, "train")
            apart = v.values[:end] - w_k.values[:end] if learns else None
            slope = 0.0 if apart is None else float(apart @ gradient)
            v.values[end:] = network.flat[end:]
            v.counters.copy_(network.state().counters)
            gradient.mul_(a)
            optimiser.step()
            a, learns = min(max(a - work.rate * slope, 0.0), 1.0), False  # once a round
            network.load(w_k)

        losses = network.train(work.batches(), work.rate, after=beside)
        work.keep = {**kept_arrays(v), "a": torch.tensor([a], dtype=torch.float64)}
        return losses

    def predictor(self, layout: Layout, w: Model, kept: Kept) -> Model:
        return mixed(kept_model(kept), w, float(kept["a"]))


class APFL(AveragingMethod):
    """w is FedAvg's; site k predicts with m = a_k v_k + (1 - a_k) w: weights, not outputs."""

    name: Literal["apfl"] = "apfl"
    about: ClassVar[About] = About(
        family="personal",
        paper="Deng et al. 2020, arXiv 2003.13461",
        rule="w by FedAvg; v_k by a grad L_k(m), m = a v_k + (1 - a) w; a by its own gradient",
        fedavg="its global model always does; mix = 0 that stays makes m the global model",
        use="sites differ, and it is not known by how much",
        needs="twice the local compute",
        keeps="site 1",
    )
    mix: float = setting(
        0.5, origin="derived from the method's code", help="a at the start", ge=0, le=1
    )
    adaptive: bool = setting(
        True, origin="derived from the method's paper", help="whether a is learned, once a round"
    )

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(Mixed(mix=self.mix, adaptive=self.adaptive))
