"""pFedMe: personal models by Moreau envelopes (Dinh et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.local_rules import LocalRule, LocalWork, kept_arrays
from autofedavg.core.settings import setting
from autofedavg.core.trainer import LocalTrainer
from autofedavg.federation.local_training import LocalRequest
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class Envelope(LocalRule):
    """theta by steps on L(theta) + (pull/2)||theta - w_k||^2; then w_k follows it."""

    name: Literal["pfedme"] = "pfedme"
    keeps: ClassVar[bool] = True
    pull: float = Field(ge=0, allow_inf_nan=False)
    inner_rate: float = Field(gt=0, allow_inf_nan=False)
    inner_steps: int = Field(ge=1)
    rate: float = Field(gt=0, allow_inf_nan=False)

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        theta = network.flat[: network.layout.trainable]  # the network itself, from w on
        w_k, decay, losses = theta.clone(), network.training.weight_decay, []
        for batch in work.batches():
            for step in range(self.inner_steps):
                gradient, loss = network.differentiate(network.state(), batch, "train")
                gradient.add_(theta - w_k, alpha=self.pull).add_(theta, alpha=decay)
                theta.sub_(gradient, alpha=self.inner_rate)
                losses += [loss.clone()] if step == 0 else []
            w_k.sub_(w_k - theta, alpha=self.rate * self.pull)
        work.keep = kept_arrays(network.model())
        theta.copy_(w_k)
        return torch.stack(losses) if losses else torch.empty(0)


class PFedMe(AveragingMethod):
    """w_k follows the site's theta_k, which is pulled towards it and is its personal model."""

    name: Literal["pfedme"] = "pfedme"
    about: ClassVar[About] = About(
        family="personal",
        paper="Dinh et al. 2020, NeurIPS",
        rule="theta near argmin L_k + (pull/2)||theta - w_k||^2; w_k moves towards theta",
        fedavg="never: w_k takes steps of another kind",
        use="sites differ, and SGD suits the network",
        needs="inner_steps times the local compute; has step sizes of its own",
        keeps="site 1",
    )
    pull: float = setting(
        15.0, origin="derived from the method's code", help="lambda, the pull towards w_k", ge=0
    )
    inner_rate: float = setting(
        0.05, origin="ours: 0.1 of the method's code times its lambda is above 1",
        help="eta_p, the step size of theta; below 1/lambda", gt=0,
    )  # fmt: skip
    inner_steps: int = setting(
        5, origin="derived from the method's code", help="steps of theta on each batch", ge=1
    )
    rate: float = setting(
        0.005, origin="derived from the method's code", help="eta, the step size of w_k", gt=0
    )
    server_rate: float = setting(
        1.0, origin="derived from the method's code",
        help="beta: w <- (1 - beta) w + beta sum_k p_k w_k", gt=0,
    )  # fmt: skip

    @model_validator(mode="after")
    def _settles(self) -> PFedMe:
        if self.inner_rate * self.pull >= 1:
            product = f"{self.inner_rate:g} * {self.pull:g} = {self.inner_rate * self.pull:g}"
            raise ValueError(f"inner_rate * pull must be below 1, or theta swings: {product}")
        return self

    def local(self, layout: Layout) -> LocalRequest:
        numbers = self.model_dump(include={"pull", "inner_rate", "inner_steps", "rate"})
        return LocalRequest(Envelope(**numbers))

    def aggregate(self, at: Aggregation) -> Model:
        return at.step(self.server_rate * at.move)
