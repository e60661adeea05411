"""LearnAggWeight at the port: its calls, its steps at the server, and steps that are too long."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import FederationError
from autofedavg.core.mixture import Mixture
from autofedavg.core.plan import Plan, Update
from autofedavg.core.seeds import Purpose
from autofedavg.core.site import Facts
from autofedavg.federation.calls import Ask, Calls
from autofedavg.federation.encoding import Sender
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.replies import BadReply, gradient_of, lacks, theta_of
from autofedavg.federation.share_models import Sharing

if TYPE_CHECKING:
    from autofedavg.federation.port import Federation

Found = TypeVar("Found")


def at_server(federation: Federation, plan: Plan, t: int, w_k: Bank) -> Update:
    """The server takes every client's step on beta, from their gradients at one w (decision 34)."""

    def update(s: int, beta: Tensor) -> dict[str, Tensor]:
        chance = federation.secret.generator("server", Purpose.ALPHA, t, s)  # decision 44
        mixture = Mixture(w_k, beta, plan.gamma, plan.layers, chance)
        gradients = federation.differentiate(
            t, s, mixture.w, w_k.sites, plan.trainable, data=plan.data, mode=plan.mode
        )
        rate = plan.optimiser.client_rate
        return {k: mixture.step(grad, rate, plan.smoothing) for k, grad in gradients.items()}

    return update


class LearningCalls:
    """The port's calls of LearnAggWeight.

    Args:
        calls: asks the clients.
        sender: how models travel.
    """

    def __init__(self, calls: Calls, sender: Sender) -> None:
        self._calls, self._sender = calls, sender
        self._sharing = Sharing(calls, sender)
        self._losses: list[dict[str, float]] = []  # of a message, by site

    def share_models(self, t: int, w_k: Bank) -> None:
        """Sends every client the K-1 models it does not have.

        A repeated or retried request carries digests only, and then what is missing.
        """
        self._sharing.share(t, w_k)

    def update_beta(self, t: int, s: int, beta: Tensor, **how: Any) -> dict[str, Tensor]:
        """One step s on beta at every client that has the models.

        A client that has lost the models says so, is sent them again, and is asked once more.

        Returns:
            theta^{s,k}, the stepped parameters of beta (beta^{s,k} itself but for `softplus`).
        """
        replies = self._ask_holders(
            "update_beta", {"beta": beta}, {"t": t, "s": s, **how}, lambda r: theta_of(r, beta, s)
        )
        return self._without_losses(replies)

    def _ask_holders(
        self,
        call: str,
        arrays: Mapping[str, Tensor],
        facts: Facts,
        read: Callable[[Message], Found],
    ) -> dict[str, Found]:
        """Asks all clients that were sent the models; those that have lost them, once more.

        Args:
            call: its name.
            arrays: of the message to every client.
            facts: its plain values, `t` and `s` among them.
            read: makes something of a reply.
        """
        shared, t, s = self._sharing.shared, int(facts["t"]), int(facts["s"])
        if shared is None:
            raise FederationError(
                "no models have been shared yet",
                client="all",
                call=call,
                round=t,
                remedy="call share_models first",
            )
        message = Message(arrays, {**facts, "digest": shared.digest})
        forgetful: list[str] = []

        def read_or_note(name: str, reply: Message) -> Found | None:
            if not lacks(reply):
                return read(reply)
            if name in forgetful:
                raise BadReply("cannot keep the models it is sent")
            forgetful.append(name)
            return None

        asked = dict.fromkeys(shared.sites, message)
        found = self._calls.ask(Ask(call, asked, read_or_note, t, s))
        if forgetful:
            there = len(found) - len(forgetful)
            needed = max(0, self._calls.needed(call, len(asked)) - there)
            back = self._sharing.deliver(t, shared, dict.fromkeys(forgetful, ()), s, needed)
            asked = dict.fromkeys(back, message)
            found |= self._calls.ask(Ask(call, asked, read_or_note, t, s, needed))
        return {name: reply for name, reply in found.items() if reply is not None}

    def differentiate(
        self, t: int, s: int, w: Model, sites: Sequence[str], length: int, **how: Any
    ) -> dict[str, Tensor]:
        """The gradient at w of the loss of each of these clients' mini-batch of step s.

        Args:
            t: the round.
            s: the step of LearnAggWeight.
            w: where the loss is differentiated.
            sites: the clients to ask.
            length: D', the numbers of w that are trained.
            **how: plain values for the clients: `data`, the split; `mode`, the network's.

        Returns:
            grad L_k(w), (D',), of those that replied; valid until the next call.
        """
        facts = {"t": t, "s": s, **how}
        parcel = self._sender.parcel(w)
        message = Message(parcel.arrays, {**facts, **self._sender.sent})

        def read(_: str, reply: Message) -> tuple[Tensor, float | None]:
            return gradient_of(reply, length, w.values.dtype, s)

        def mend(_: str, reply: Message) -> Message | None:
            return Message(arrays_of(parcel.model), facts) if lacks(reply) else None

        asked = dict.fromkeys(sites, message)
        replies = self._calls.ask(Ask("differentiate", asked, read, t, s, mend=mend))
        return self._without_losses(replies)

    def clip(
        self, t: int, s: int, theta: Tensor, theta_k: Mapping[str, Tensor], most: float
    ) -> Mapping[str, Tensor]:
        """The clients' steps from theta, theta itself in place of one that is far too long.

        A step more than `most` times as long as the median of the others does not count, and is
        recorded as an event; 0 for no limit. A step that is not finite never counts (decision 45).
        """
        steps = torch.stack(list(theta_k.values())) - theta
        norms = torch.linalg.vector_norm(steps.flatten(1), dim=1).tolist()
        sizes = dict(zip(theta_k, norms, strict=True))
        cut = {name: 0.0 for name, size in sizes.items() if not math.isfinite(size)}
        if most:
            cut |= outliers({n: size for n, size in sizes.items() if n not in cut}, most)
        if not cut:
            return theta_k
        call = "update_beta" if self._sharing.shared else "differentiate"
        for name, middle in cut.items():
            others = f", the others' {middle:.3g}" if middle else ""
            reason = f"its step on beta is {sizes[name]:.3g} long{others}: it does not count"
            self._calls.record(call, name, "clipped", reason, t, s)
        return {**theta_k, **dict.fromkeys(cut, theta)}

    def take_learning_losses(self) -> dict[str, list[float | None]]:
        """Every site's loss in every message of LearnAggWeight since this was last called."""
        taken, self._losses = self._losses, []
        names = self._calls.names
        return {name: [losses.get(name) for losses in taken] for name in names} if taken else {}

    def _without_losses(
        self, replies: Mapping[str, tuple[Tensor, float | None]]
    ) -> dict[str, Tensor]:
        """What clients found in a step; their losses are kept, where they send them."""
        losses = {name: loss for name, (_, loss) in replies.items() if loss is not None}
        if losses or not replies:
            self._losses.append(losses)
        return {name: found for name, (found, _) in replies.items()}


def outliers(sizes: Mapping[str, float], most: float) -> dict[str, float]:
    """Names whose size is more than `most` times the median of the others, with that median.

    Two sizes have no outlier, and a median of zero has none.

    Example:
        >>> outliers({"A": 1.0, "B": 2.0, "C": 500.0}, 100.0)
        {'C': 1.5}
    """
    if len(sizes) < 3:
        return {}
    *rest, largest = sorted(sizes.values())
    if largest <= most * statistics.median(rest):  # no other median is smaller
        return {}
    found = {}
    for name, size in sizes.items():
        middle = statistics.median(other for who, other in sizes.items() if who != name)
        if middle > 0 and size > most * middle:
            found[name] = middle
    return found
