"""What a site does to learn the aggregation weights, in each way of learning."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from autofedavg import algorithm
from autofedavg.core.bank import Model
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import constraint
from autofedavg.core.errors import DataError, Diverged, TrainingError
from autofedavg.core.problem import LocalData
from autofedavg.core.seeds import Purpose, Seeds, global_seed
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Batch, LocalTrainer
from autofedavg.federation import loss_calls
from autofedavg.federation.blind_site import BlindSite
from autofedavg.federation.client_scoring import MISSING, ScoringClient
from autofedavg.federation.client_state import ClientState, received
from autofedavg.federation.messages import Message
from autofedavg.federation.private_steps import PrivateSteps
from autofedavg.federation.share_models import assembled


class LearningClient(ScoringClient):
    """The requests of a client that are about aggregation weights.

    Args:
        site: its name.
        data: its data.
        trainer: the resident network; may be shared by the clients of one process.
        seeds: the run's random streams.
        client_state: what it remembers between requests.
        private: makes its steps differentially private, as far as the study asks for it.
        masked: whether its parts of sums are masked; no request can change it.
    """

    def __init__(
        self,
        site: str,
        data: LocalData,
        trainer: LocalTrainer,
        seeds: Seeds,
        client_state: ClientState,
        private: PrivateSteps | None = None,
        *,
        masked: bool = True,
    ) -> None:
        super().__init__(site, data, trainer, client_state)
        self.seeds, self.private = seeds, private
        self.blind = BlindSite(self, seeds, masked=masked)
        data.settle(trainer.device)

    def share_models(self, message: Message) -> Message:
        dtype = self.trainer.layout.dtype
        device = self.trainer.device
        return Message({}, assembled(message, self.site, self.client_state, dtype, device))

    def update_beta(self, message: Message) -> Message:
        """The steps of one message, from step s on: one, as in Algorithm 1, or several.

        Between several steps beta is this client's own, kept legal by gamma (decision 33).
        """
        how, beta = message.facts, message.arrays["beta"]
        t, first = int(how["t"]), int(how["s"])
        bank = self.client_state.bank(how["digest"])
        if bank is None:
            return MISSING
        paid = self.private.weighing("update_beta", how, bank, beta) if self.private else None
        gamma, losses = constraint(how["gamma"]), []
        several = "steps" in how
        step = (BetaOptimiser(**how["optimiser"]) if several else BetaOptimiser("sgd", 1.0)).start()
        for s in range(first, first + how.get("steps", 1)):
            seed = self.seeds.number(self.site, Purpose.ALPHA, t, s)
            if paid:
                found = paid.theta(self.trainer, bank, beta, how, seed, s)
            else:
                x = self.weight_batch(t, s, how)
                with self.seeded(Purpose.NETWORK, t, s):
                    found, loss = algorithm.update_beta(self.trainer, bank, beta, x, how, seed)
                losses.append(self.checked(loss.reshape(1), f"update_beta, round {t}", s))
            theta = step(gamma.free(beta), found)
            beta = gamma.beta(theta)
        facts = paid.facts if paid else {"loss": sum(losses) / len(losses)}
        return Message({"theta": theta}, facts)

    def weighed(self, theta: Tensor, loss: float, how: Facts) -> Message:
        """The reply to one step on beta that was taken together with other clients'."""
        if not math.isfinite(loss):
            self.checked(torch.tensor([loss]), f"update_beta, round {how['t']}", int(how["s"]))
        return Message({"theta": theta}, {"loss": loss})

    def differentiate(self, message: Message) -> Message:
        how = message.facts
        t, s = int(how["t"]), int(how["s"])
        w = received(message, self.client_state, self.trainer.layout.dtype)
        if w is None:
            return MISSING
        self._refuse_other(w, f"differentiate, round {t}, step {s}")
        paid = self.private.weighing("differentiate", how, w) if self.private else None
        if paid:
            gradient = paid.gradient(self.trainer, w, how["mode"], s)
            return Message({"gradient": gradient}, paid.facts)
        gradient, value = self._differentiated(w, t, s, how)
        return Message({"gradient": gradient.clone()}, {"loss": value})

    def _refuse_other(self, w: Model, place: str) -> None:
        """Refuses a model of another network."""
        if not self.trainer.layout.holds(w):
            raise TrainingError(
                f"was sent {w.values.numel()} numbers of {w.values.dtype}, not its network's",
                where=f"client {self.site}, {place}",
                remedy="give every site the same study",
            )

    def _differentiated(self, w: Model, t: int, s: int, how: Facts) -> tuple[Tensor, float]:
        """The gradient at w of the mini-batch of step s, which is reused, and the loss."""
        x = self.weight_batch(t, s, how)
        with self.seeded(Purpose.NETWORK, t, s):
            gradient, loss = self.trainer.differentiate(w, x, how["mode"])
        return gradient, self.checked(loss.reshape(1), f"differentiate, round {t}", s)

    def share_keys(self, message: Message) -> Message:
        return Message({}, {"key": self.blind.sums.renewed()})

    def masked_gradient(self, message: Message) -> Message:
        """The mean gradient of some mini-batches, as a part of a sum."""
        how = message.facts
        w = received(message, self.client_state, self.trainer.layout.dtype)
        if w is None:
            return MISSING
        self._refuse_other(w, f"masked_gradient, round {how['t']}")
        paid = self.private.weighing("masked_gradient", how, w) if self.private else None
        if paid:  # no noise covers the loss: it is left out of the sum
            return self.blind.gradient(
                message, lambda s: (paid.gradient(self.trainer, w, how["mode"], s), 0.0), paid.price
            )
        return self.blind.gradient(
            message, lambda s: self._differentiated(w, int(how["t"]), s, how)
        )

    def mixture_losses(self, message: Message) -> Message:
        return loss_calls.mixture_losses(self, message)

    def model_losses(self, message: Message) -> Message:
        return loss_calls.model_losses(self, message)

    def weight_batch(self, t: int, s: int, how: Facts) -> Batch:
        """The mini-batch of step s, from the split that the request names."""
        size = self.trainer.training.batch_size
        data = self._cases(how["data"], how.get("half"))
        return data.weight_batch(self.seeds, t, s, how["data"], size)

    def seeded(self, purpose: Purpose, t: int, s: int = 0) -> AbstractContextManager[None]:
        """For what takes no generator, such as dropout."""
        return global_seed(self.seeds.number(self.site, purpose, t, s), self.trainer.device)

    def checked(self, losses: Tensor, place: str, first: int = 1) -> float:
        """The mean loss; refuses losses that are not finite, naming the first such step."""
        steps = losses.numel()
        if not steps:
            raise DataError(
                "there was no batch to train on",
                where=f"client {self.site}, {place}",
                remedy="give this site training cases",
            )
        mean = float(losses if steps == 1 else losses.mean())
        if not math.isfinite(mean):
            bad = (~torch.isfinite(losses)).nonzero()
            step = int(bad[0]) + 1 if len(bad) else steps
            raise Diverged(
                f"the loss is {float(losses[step - 1])}",
                where=f"client {self.site}, {place}, step {first + step - 1}",
                remedy="lower training.learning_rate, or look at this site's images and labels",
            )
        return mean
