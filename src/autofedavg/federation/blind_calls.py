"""The port's calls of blind learning: sums over sites, of which the server sees no summand."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofedavg.core.bank import Model
from autofedavg.core.blind import BlindPlan, Lesson
from autofedavg.core.errors import FederationError, from_outside
from autofedavg.core.layout import Layout
from autofedavg.core.site import Facts
from autofedavg.federation.blind_site import LESSON
from autofedavg.federation.calls import Ask
from autofedavg.federation.fixed_point import NARROW, WIDE, from_fixed, summed
from autofedavg.federation.messages import Message
from autofedavg.federation.replies import SAME_STUDY, BadReply, digest_in, finite, lacks
from autofedavg.federation.scoring_calls import ScoringCalls
from autofedavg.federation.secure_sum import LEAST_SITES, SumOver

KEY = 64  # characters of a key; a client without masks has none
MOST_ATTEMPTS = 100


@dataclass(frozen=True)
class Part:
    """One site's part of a sum, checked; of its numbers nothing can be seen."""

    arrays: Mapping[str, Tensor]
    kept: str = ""
    u: tuple[float, ...] = ()


@dataclass(frozen=True)
class NewKey:
    """A site has another key than the sum names: it has started again."""

    key: str


@dataclass(frozen=True)
class TrainSum:
    """LocalTrain of all sites that replied, as sums.

    Attributes:
        w: the new global model, w + sum_j u_j (w_j - w) / U.
        total: U, the sum of their weights, (P,).
        loss: the mean training loss.
        cosine: root mean square of the cosines of the last gradient and the sites' w_j - w; None
            where no site took a step.
        u: each site's weights, (P,), where they are shown.
        sites: those that replied.
    """

    w: Model
    total: Tensor
    loss: float
    cosine: float | None
    u: Mapping[str, Tensor]
    sites: tuple[str, ...]


class BlindCalls(ScoringCalls):
    """Sums over sites that need every site of a set; one that is missing makes them unreadable."""

    _keys: dict[str, str]
    _requests: Callable[..., dict[str, Message]]
    _started_again: Callable[[int, str, Message], Message]

    def masked_train(
        self,
        t: int,
        w: Model,
        *,
        T: int,
        plan: BlindPlan,
        layout: Layout,
        lesson: Lesson | None = None,
    ) -> TrainSum:
        """LocalTrain on every client, of which only sums come back.

        Args:
            t: the round.
            w: the global model that all start from.
            T: the last round.
            plan: the constants of blind learning.
            layout: of the network.
            lesson: what sites learn from before they train.
        """
        self._sender.remember(w)
        end, P = layout.trainable, plan.numbers(layout)
        sizes = {"narrow": end, "wide": layout.size - end + P + 3}
        along = {} if lesson is None else {f"{LESSON}y": lesson.y, f"{LESSON}U": lesson.total}

        def with_lesson(message: Message) -> Message:
            return Message({**message.arrays, **along}, message.facts)

        def ask(over: SumOver) -> Ask[Part | NewKey]:
            facts: Facts = {"t": t, "T": T, "blind": plan.note(), "sum": over.note()}
            made = self._requests(dict.fromkeys(self.names, w), facts, {}, True)
            messages = {name: with_lesson(made[name]) for name in over.keys}

            def read(_: str, reply: Message) -> Part | NewKey:
                return _part(reply, sizes, plan, P, kept=True)

            def mend(name: str, reply: Message) -> Message | None:
                if not lacks(reply) or "key" in reply.facts:
                    return None
                if reply.facts.get("kept") is True:
                    messages[name] = self._started_again(t, name, messages[name])
                    return messages[name]
                return with_lesson(self._sender.whole(w, messages[name].facts))

            return Ask("local_train", messages, read, t, mend=mend)

        parts = self._sum("local_train", t, ask, by_size=plan.sizes)
        self._sender.arrived(parts, w)
        self.personal.states |= {name: part.kept for name, part in parts.items()}
        return self._trained(t, w, plan, layout, parts)

    def _trained(
        self, t: int, w: Model, plan: BlindPlan, layout: Layout, parts: Mapping[str, Part]
    ) -> TrainSum:
        K, P = len(parts), plan.numbers(layout)
        found = summed(part.arrays for part in parts.values())
        moved = torch.cat([from_fixed(found["narrow"], K), from_fixed(found["wide"], K)])
        moved, scalars = moved[: layout.size], moved[layout.size :].cpu()
        total, (loss, steps, squares) = scalars[:P], scalars[P:].tolist()
        least, most = plan.weight(torch.tensor(plan.bounds, dtype=torch.float64)).tolist()
        shares = self._training_cases(parts) / self._training_cases() if plan.sizes else float(K)
        low, high = 0.999 * least * shares, 1.001 * most * shares
        if not bool((total > low).all() and (total < high).all()) or not 0 <= round(steps) <= K:
            self._unreadable(t, "local_train")
        if plan.layers:
            for first, last, p in layout.layers(plan.layers).segments:
                moved[first:last] /= total[p].item()
        else:
            moved /= total.item()
        values = (w.values.to(moved.device).double() + moved).to(w.values.dtype)
        cosine = math.sqrt(max(0.0, squares) / steps) if round(steps) else None
        u = {k: torch.tensor(p.u, dtype=torch.float64) for k, p in parts.items() if p.u}
        counters = w.counters.to(moved.device)  # integers are not averaged: they stay as they were
        new = self._sender.settled(Model(values, counters, w.form))
        self._sender.remember(new)
        return TrainSum(new, total, loss / K, cosine, u, tuple(parts))

    def masked_gradient(
        self, t: int, w: Model, *, plan: BlindPlan, layout: Layout, size: bool, **how: Any
    ) -> tuple[Tensor, float]:
        """R g, with g the mean over the clients of their gradients at w; and the mean loss.

        Args:
            t: the round.
            w: the global model.
            plan: the constants of blind learning.
            layout: of the network.
            size: whether clients count by their training cases.
            **how: plain values for the clients: `data`, the split; `mode`, the network's;
                `batches`, how many mini-batches.
        """
        length = plan.sketch_of(layout).size

        def ask(over: SumOver) -> Ask[Part | NewKey]:
            facts: Facts = {"t": t, "blind": plan.note(), "size": size, "sum": over.note(), **how}
            messages = {name: self._sender.message(name, w, facts) for name in over.keys}

            def read(_: str, reply: Message) -> Part | NewKey:
                return _part(reply, {"narrow": length, "wide": 3}, plan, 0)

            def mend(name: str, reply: Message) -> Message | None:
                if not lacks(reply) or "key" in reply.facts:
                    return None
                return self._sender.whole(w, messages[name].facts)

            return Ask("masked_gradient", messages, read, t, mend=mend)

        parts = self._sum("masked_gradient", t, ask, by_size=size)
        self._sender.arrived(parts, w)
        total, K = summed(part.arrays for part in parts.values()), len(parts)
        share, loss, scaled = from_fixed(total["wide"], K).tolist()
        most = 1.0 if size else float(K)
        if not 0 < share <= 1.001 * most or not 0 <= round(scaled) <= K:
            self._unreadable(t, "masked_gradient")
        if round(scaled):
            reason = f"the gradient of {round(scaled)} of {K} sites was too long, and was scaled"
            self._calls.record("masked_gradient", "all", "clipped", reason, t)
        return (from_fixed(total["narrow"], K) / share).float(), loss / share

    def _sum(
        self,
        call: str,
        t: int,
        ask: Callable[[SumOver], Ask[Part | NewKey]],
        *,
        by_size: bool,
    ) -> dict[str, Part]:
        """Every part of a sum; where a site is missing, of a further attempt without it."""
        cases = self._training_cases() if by_size else 0
        needed = max(LEAST_SITES, self._calls.needed(call, self.K))
        self._share_keys(t, needed)
        present = [name for name in self.names if name in self._keys]
        for attempt in range(1, MOST_ATTEMPTS):
            over = SumOver({name: self._keys[name] for name in present}, attempt, cases)
            asked = ask(over)
            asked.needed = needed
            replies = self._calls.ask(asked)
            parts = {name: reply for name, reply in replies.items() if isinstance(reply, Part)}
            if len(parts) == len(present):
                return parts
            # What the others have sent is of no use any more, and is forgotten here.
            self._keys |= {n: r.key for n, r in replies.items() if isinstance(r, NewKey)}
            present = list(replies)
        raise FederationError(
            f"the sites' keys have changed in {attempt} attempts",
            client="all",
            call=call,
            round=t,
            remedy="look at the sites' logs for restarts, then resume the run",
        )

    def _training_cases(self, names: Collection[str] | None = None) -> int:
        """The training cases of these sites together, or of all."""
        known = self.names if names is None else names
        return sum(site.cases["train"] for site in self.sites if site.name in known)

    def _share_keys(self, t: int, needed: int) -> None:
        """Asks sites whose public key is not known here for a new one."""
        unknown = [name for name in self.names if name not in self._keys]
        if not unknown:
            return
        asked = dict.fromkeys(unknown, Message({}, {"t": t}))
        missing = max(0, needed - len(self._keys))
        self._keys |= self._calls.ask(
            Ask("share_keys", asked, lambda _, reply: _key(reply), t, needed=missing)
        )

    def _unreadable(self, t: int, call: str) -> None:
        raise FederationError(
            "the sum over the sites is not one: masks have not cancelled",
            client="all",
            call=call,
            round=t,
            remedy="have the same version at all sites, without filters on what they send",
        )


def _key(reply: Message) -> str:
    """A site's public key."""
    key = reply.facts.get("key")
    whole = isinstance(key, str) and len(key) in (0, KEY) and set(key) <= set("0123456789abcdef")
    if not isinstance(key, str) or not whole or reply.arrays:
        raise BadReply(f"its key is {from_outside(key)}", SAME_STUDY)
    return key


def _part(
    reply: Message, sizes: Mapping[str, int], plan: BlindPlan, P: int, *, kept: bool = False
) -> Part | NewKey:
    """A site's part of a sum: integers of these numbers, and what it says in clear."""
    if lacks(reply):
        return NewKey(_key(reply))
    wanted = {"narrow": ((sizes["narrow"],), NARROW), "wide": ((sizes["wide"],), WIDE)}
    found = {name: (tuple(array.shape), array.dtype) for name, array in reply.arrays.items()}
    if found != wanted:
        raise BadReply(f"its part of the sum is {from_outside(found)}, not {wanted}", SAME_STUDY)
    shown = reply.facts.get("u", [])
    numbers = [finite(value) for value in shown] if isinstance(shown, list) else [None]
    if None in numbers or len(numbers) != (P if plan.show else 0):
        raise BadReply(f"its weights are {from_outside(shown)}", SAME_STUDY)
    digest = digest_in(reply.facts, "kept") if kept else ""
    return Part(reply.arrays, digest, tuple(value for value in numbers if value is not None))
