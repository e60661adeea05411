"""LearnAggWeight's steps at the port: how they are asked for, and none far beyond the others'."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import FederationError
from autofedavg.core.mixture import Mixture
from autofedavg.core.plan import Plan, Update
from autofedavg.core.seeds import Purpose
from autofedavg.core.site import Facts
from autofedavg.federation.calls import Ask, Calls
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.replies import BadReply, gradient_of, lacks, theta_of
from autofedavg.federation.sending import Sending
from autofedavg.federation.share_models import Sharing

if TYPE_CHECKING:
    from autofedavg.federation.port import Federation


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


class Steps:
    """The server's side of `update_beta` and `differentiate`.

    Args:
        calls: asks the clients.
        sending: in what form models travel.
        sharing: which models the clients have.
    """

    def __init__(self, calls: Calls, sending: Sending, sharing: Sharing) -> None:
        self._calls, self._sending, self._sharing = calls, sending, sharing
        self._losses: list[dict[str, float]] = []  # a message's, by site

    def update_beta(self, t: int, s: int, beta: Tensor, how: Facts) -> dict[str, Tensor]:
        """The theta^{s,k} of every client that has the models."""
        shared = self._sharing.shared
        if shared is None:
            raise FederationError(
                "no models have been shared yet",
                client="all",
                call="update_beta",
                round=t,
                remedy="call share_models first",
            )
        message = Message({"beta": beta}, {"t": t, "s": s, "digest": shared.digest, **how})
        forgetful: list[str] = []

        def read(name: str, answer: Message) -> tuple[Tensor, float] | None:
            if not lacks(answer):
                return theta_of(answer, beta, s)
            if name in forgetful:
                raise BadReply("cannot keep the models it is sent")
            forgetful.append(name)
            return None

        asked = dict.fromkeys(shared.sites, message)
        stepped = self._calls.ask(Ask("update_beta", asked, read, t, s))
        if forgetful:
            there = len(stepped) - len(forgetful)
            needed = max(0, self._calls.needed("update_beta", len(asked)) - there)
            back = self._sharing.deliver(t, shared, dict.fromkeys(forgetful, ()), s, needed)
            asked = dict.fromkeys(back, message)
            stepped |= self._calls.ask(Ask("update_beta", asked, read, t, s, needed))
        return self._learned({name: found for name, found in stepped.items() if found})

    def differentiate(
        self, t: int, s: int, w: Model, sites: Sequence[str], length: int, how: Facts
    ) -> dict[str, Tensor]:
        """The gradients at w, (D',), of those that answered."""
        facts = {"t": t, "s": s, **how}
        parcel = self._sending.parcel(w)
        message = Message(parcel.arrays, {**facts, **self._sending.sent})

        def read(_: str, answer: Message) -> tuple[Tensor, float]:
            return gradient_of(answer, length, w.values.dtype, s)

        def mend(_: str, answer: Message) -> Message | None:
            return Message(arrays_of(parcel.model), facts) if lacks(answer) else None

        asked = dict.fromkeys(sites, message)
        return self._learned(self._calls.ask(Ask("differentiate", asked, read, t, s, mend=mend)))

    def clip(
        self, t: int, s: int, theta: Tensor, theta_k: Mapping[str, Tensor], most: float
    ) -> Mapping[str, Tensor]:
        """The theta^{s,k}, theta itself in the place of one that is far beyond the others'."""
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
            self._calls.message(call, name, "clipped", reason, t, s)
        return {**theta_k, **dict.fromkeys(cut, theta)}

    def take_losses(self, names: Sequence[str]) -> dict[str, list[float | None]]:
        """Every site's loss in every message since this was last asked."""
        said, self._losses = self._losses, []
        return {name: [by.get(name) for by in said] for name in names} if said else {}

    def _learned(self, answers: Mapping[str, tuple[Tensor, float]]) -> dict[str, Tensor]:
        """What clients found in a step; their losses are noted."""
        self._losses.append({name: loss for name, (_, loss) in answers.items()})
        return {name: found for name, (found, _) in answers.items()}


def outliers(sizes: Mapping[str, float], most: float) -> dict[str, float]:
    """Who is more than `most` times the median of the others, and that median.

    Of two nobody can be told from the other, and nothing is far from zero: neither has outliers.

    Example:
        >>> outliers({"A": 1.0, "B": 2.0, "C": 500.0}, 100.0)
        {'C': 1.5}
    """
    if len(sizes) < 3:
        return {}
    *rest, largest = sorted(sizes.values())
    if largest <= most * statistics.median(rest):  # nobody's others have a smaller one
        return {}
    found = {}
    for name, size in sizes.items():
        middle = statistics.median(other for who, other in sizes.items() if who != name)
        if middle > 0 and size > most * middle:
            found[name] = middle
    return found
