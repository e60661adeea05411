"""The losses of models on the same mini-batches: the port's calls, and a client's replies.

They say whether a call of LearnAggWeight paid (decision 63). The batches are those of the steps
s .. s + steps - 1 of a round: from S + 1 on, none that a step on beta was taken on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autofedavg.core.bank import Model
from autofedavg.core.errors import TrainingError, from_outside
from autofedavg.core.seeds import Purpose
from autofedavg.core.site import Facts
from autofedavg.federation.calls import Ask
from autofedavg.federation.client_scoring import MISSING
from autofedavg.federation.client_state import received
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.replies import SCORE_BOUND, BadReply, lacks
from autofedavg.federation.steps import LearningCalls, outliers

if TYPE_CHECKING:
    from autofedavg.federation.client_learning import LearningClient


class LossCalls(LearningCalls):
    """The port's calls for the losses of mixtures.

    Attributes:
        verdict: whether the last call of LearnAggWeight paid, for the record of its round.
    """

    verdict: Facts

    def mixture_losses(self, t: int, alphas: Tensor, **how: Any) -> dict[str, Tensor]:
        """Losses at the clients that have the models of a round.

        Args:
            t: the round.
            alphas: (M, K), or (M, K, P): the weights of M mixtures.
            **how: plain values for the clients: `s` and `steps`, the batches; `data`, the split;
                `layers`, what a layer is.

        Returns:
            By client that replied, the losses (M, steps).
        """
        shape = (len(alphas), int(how["steps"]))
        return self._ask_holders(
            "mixture_losses", {"alpha": alphas}, {"t": t, **how}, lambda r: losses_of(r, shape)
        )

    def model_losses(
        self, t: int, models: Sequence[Model], sites: Sequence[str], **how: Any
    ) -> dict[str, Tensor]:
        """Losses at these clients of models that they are sent, one after another.

        Args:
            t: the round.
            models: the M models.
            sites: the clients to ask.
            **how: as for `mixture_losses`, without `layers`.

        Returns:
            By client that replied for every model, the losses (M, steps).
        """
        found: list[Mapping[str, Tensor]] = []
        for w in models:
            asked = list(found[-1]) if found else sites  # one that missed a model has no pair
            found.append(self._losses_of(w, asked, {"t": t, **how}))
        return {name: torch.cat([replies[name] for replies in found]) for name in found[-1]}

    def _losses_of(self, w: Model, sites: Sequence[str], facts: Facts) -> Mapping[str, Tensor]:
        parcel, shape = self._sender.parcel(w), (1, int(facts["steps"]))
        message = Message(parcel.arrays, {**facts, **self._sender.sent})

        def read(_: str, reply: Message) -> Tensor:
            return losses_of(reply, shape)

        def mend(_: str, reply: Message) -> Message | None:
            return Message(arrays_of(parcel.model), facts) if lacks(reply) else None

        asked = dict.fromkeys(sites, message)
        t, s = int(facts["t"]), int(facts["s"])
        return self._calls.ask(Ask("model_losses", asked, read, t, s, mend=mend))

    def plausible(
        self, t: int, gains: Mapping[str, float], losses: Mapping[str, Tensor], most: float
    ) -> dict[str, Tensor]:
        """Losses without those of a site that gains or loses far more than the others.

        The limit is that on steps on beta, `most` times the others' median; 0 for none
        (decision 45).
        """
        sizes = {name: abs(gain) for name, gain in gains.items()}
        cut = outliers(sizes, most) if most else {}
        call = "mixture_losses" if self._sharing.shared else "model_losses"
        for name, middle in cut.items():
            reason = f"its loss changes by {sizes[name]:.3g}, the others' by {middle:.3g}"
            self._calls.record(call, name, "clipped", f"{reason}: it does not count", t)
        return {name: found for name, found in losses.items() if name not in cut}

    def take_verdict(self) -> Facts:
        """Whether the LearnAggWeight call since this was last called paid; empty without one."""
        taken, self.verdict = self.verdict, {}
        return taken


def losses_of(reply: Message, shape: tuple[int, int]) -> Tensor:
    """The losses in a reply: (models, batches), finite, not beyond all reason."""
    losses = reply.arrays.get("losses", torch.empty(0))
    if len(reply.arrays) > 1 or (losses.shape, losses.dtype) != (shape, torch.float64):
        sent = from_outside(sorted(reply.arrays))
        raise BadReply(f"sent {sent}, not {shape[0]} x {shape[1]} losses", "see its own log")
    largest = float(losses.abs().max())
    if not largest <= SCORE_BOUND:  # nan is not
        raise BadReply(f"a loss is {largest:g}, beyond {SCORE_BOUND:g}", "look at this site's data")
    return losses


# --- at a client ---------------------------------------------------------------------------------


def mixture_losses(client: LearningClient, message: Message) -> Message:
    """The losses of mixtures of the models that this client holds."""
    how, alphas = message.facts, message.arrays["alpha"]
    bank = client.client_state.bank(how["digest"])
    if bank is None:
        return MISSING
    layers = client.trainer.layout.layers(how["layers"]) if how["layers"] else None
    mixtures = (bank.combine(alpha, layers) for alpha in alphas)
    return _reply([_checked(client, w, how, "mixture_losses") for w in mixtures])


def model_losses(client: LearningClient, message: Message) -> Message:
    """The losses of a model that this client is sent."""
    w = received(message, client.client_state, client.trainer.layout.dtype)
    if w is None:
        return MISSING
    if not client.trainer.layout.holds(w):
        raise TrainingError(
            f"was sent {w.values.numel()} numbers of {w.values.dtype}, not its network's",
            where=f"client {client.site}, model_losses, round {message.facts['t']}",
            remedy="give every site the same study",
        )
    return _reply([_checked(client, w, message.facts, "model_losses")])


def batch_losses(client: LearningClient, w: Model, t: int, steps: range, data: str) -> Tensor:
    """The loss of a model, as it predicts, on the batch of every step; draws are the steps'."""
    losses = []
    for s in steps:
        x = client.weight_batch(t, s, {"data": data})
        with client.seeded(Purpose.NETWORK, t, s):
            losses.append(client.trainer.loss(w, x))
    return torch.stack(losses)


def _checked(client: LearningClient, w: Model, how: Facts, call: str) -> Tensor:
    """Its losses, if they are finite."""
    t, first = int(how["t"]), int(how["s"])
    found = batch_losses(client, w, t, range(first, first + int(how["steps"])), how["data"])
    client.checked(found, f"{call}, round {t}", first)
    return found


def _reply(losses: Sequence[Tensor]) -> Message:
    return Message({"losses": torch.stack(list(losses)).to("cpu", torch.float64)})
