"""One call to many clients: time limits, retries, quorum, traffic and events.

Below the port, above the engine. Every request may be repeated, so a client that did not reply is
asked again while time is left. One that lacks something is sent it. One whose reply cannot be used
is left out, or ends the run, by setting. Events record what happened to which site (decision 31).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from autofedavg.core.errors import DivergedReply, FederationError, from_outside
from autofedavg.federation.messages import Message, NoReply, Traffic, Transport, total_bytes
from autofedavg.federation.replies import BadReply, Diverging, refuse_error, size_of
from autofedavg.federation.settings import Exchange
from autofedavg.federation.spending import Spending

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
What = Literal[
    "lost", "dropped", "retried", "resent", "returned", "clipped", "outlying", "restarted"
]
MENDS = 3  # times within a call that a site may say what it lacks and be sent it


@dataclass(frozen=True)
class Event:
    """Something that happened to a site in a call.

    Attributes:
        what: "lost": gave no answer; "retried": asked again after none; "dropped": its answer
            could not be used; "resent": sent again what it lacked; "returned": answered after it
            was lost or dropped; "clipped": its step on beta was too long; "outlying": its model is
            far from all others; "restarted": it lost its personal model and started again.
        seconds: since the call began.
        s: the step of LearnAggWeight, where the call is one.
    """

    call: str
    site: str
    what: What
    reason: str
    seconds: float
    s: int | None = None

    def record(self) -> dict[str, Any]:
        """Plain values for rounds.jsonl."""
        step = {} if self.s is None else {"s": self.s}
        found = {"call": self.call, "site": self.site, "what": self.what, "reason": self.reason}
        return {**found, **step, "seconds": round(self.seconds, 3)}


@dataclass
class Ask(Generic[Answer]):
    """One call to many clients.

    Attributes:
        call: its name.
        messages: what each client is sent.
        read: makes something of a client's answer; raises `BadReply` where it cannot.
        t: the round, where there is one.
        s: the step of LearnAggWeight, where there is one.
        needed: how many must answer; None for the quorum.
        again: what a client that did not reply is sent next; the same message by default.
        mend: what a client that says it lacks something is sent next; None if it lacks nothing.
    """

    call: str
    messages: Mapping[str, Message]
    read: Callable[[str, Message], Answer]
    t: int | None = None
    s: int | None = None
    needed: int | None = None
    again: Callable[[str], Message] | None = None
    mend: Callable[[str, Message], Message | None] = lambda name, answer: None

    def __post_init__(self) -> None:
        self.given: dict[str, Answer] = {}
        self.gone: dict[str, str] = {}
        self.tries: Counter[str] = Counter()
        self.mends: dict[str, int] = {}
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def error(
        self, site: str, what: str, remedy: str, kind: type[FederationError] = FederationError
    ) -> FederationError:
        return kind(what, client=site, call=self.call, round=self.t, remedy=remedy)


class Calls:
    """Asks clients over an engine's transport.

    Args:
        transport: the engine's transport.
        names: the clients, in fixed order.
        quorum: how many must answer a call; 0 for all.
        exchange: time limits, quorums of single calls, retries, bad answers.
    """

    def __init__(
        self, transport: Transport, names: Sequence[str], quorum: int, exchange: Exchange
    ) -> None:
        self.transport, self.names = transport, names
        self.quorum, self.exchange = quorum, exchange
        self.spending = Spending()
        self._account: dict[str, Traffic] = {}
        self._events: list[Event] = []
        self._away: dict[str, str] = {}
        self._warned: set[tuple[str, str]] = set()

    def ask(self, ask: Ask[Answer]) -> dict[str, Answer]:
        """Sends every named client its message and reads the replies, in the order of the messages.

        Raises:
            FederationError: too few answered, or one that cannot be used and `bad_answers` is
                "fail".
        """
        cost = self._account.setdefault(ask.call, Traffic())
        cost.calls += 1
        limit = left = self.exchange.seconds(ask.call)
        waiting = dict(ask.messages)
        while waiting:
            answers = self.transport.ask(ask.call, waiting, left)
            cost.down += total_bytes(waiting.values())
            left = None if limit is None else max(0.0, limit - ask.seconds)
            over = left == 0.0
            following: dict[str, Message] = {}
            for name, message in waiting.items():
                answer = answers.get(name)
                if isinstance(answer, Message):
                    more = self._answered(ask, name, answer, over, cost)
                else:
                    more = self._lost(ask, name, message, answer, over)
                if more is not None:
                    following[name] = more
            waiting = following
        cost.seconds += ask.seconds
        for name in ask.given:
            if name in self._away:
                self._happened(ask, name, "returned", f"was away since {self._away[name]}")
        self._refuse_too_few(ask)
        return {name: ask.given[name] for name in ask.messages if name in ask.given}

    def needed(self, call: str, asked: int) -> int:
        """How many of those asked must answer a call."""
        return min(self.exchange.quorum(call, self.quorum, len(self.names)), asked)

    def record(
        self, call: str, site: str, what: What, reason: str, t: int, s: int | None = None
    ) -> None:
        """Records what was seen in a site's reply as an event; the log warns of it once."""
        self._events.append(Event(call, site, what, reason, 0.0, s))
        level = logging.INFO if (site, what) in self._warned else logging.WARNING
        self._warned.add((site, what))
        log.log(level, "%s of round %d: %s %s (%s)", call, t, site, what, reason)

    def take_account(self) -> dict[str, Traffic]:
        taken, self._account = self._account, {}
        return taken

    def take_events(self) -> list[dict[str, Any]]:
        taken, self._events = self._events, []
        return [event.record() for event in taken]

    def _answered(
        self, ask: Ask[Answer], name: str, answer: Message, over: bool, cost: Traffic
    ) -> Message | None:
        """Reads an answer; what the client is sent next if it lacks something."""
        try:
            cost.up += size_of(answer)
            refuse_error(answer)
            mended = ask.mends.get(name, 0)
            more = None if over or mended == MENDS else ask.mend(name, answer)
            if more is None:
                self.spending.note(ask.call, name, answer)
                ask.given[name] = ask.read(name, answer)
            else:
                ask.mends[name] = mended + 1
                self._happened(ask, name, "resent", "it lacked models that it needs")
            return more
        except BadReply as bad:
            if self.exchange.bad_answers == "fail":
                kind = DivergedReply if isinstance(bad, Diverging) else FederationError
                raise bad.error or ask.error(name, bad.reason, bad.remedy, kind) from bad
            self._happened(ask, name, "dropped", bad.reason)
            ask.gone[name] = f"was dropped ({bad.reason})"
            return None

    def _lost(
        self, ask: Ask[Answer], name: str, message: Message, answer: NoReply | None, over: bool
    ) -> Message | None:
        """Records that there is no reply; returns what the client is sent next, if anything."""
        reason = from_outside(answer.reason) if isinstance(answer, NoReply) else "no answer"
        if ask.tries[name] == self.exchange.retries or over:
            self._happened(ask, name, "lost", reason)
            ask.gone[name] = f"did not answer ({reason})"
            return None
        ask.tries[name] += 1
        self._happened(ask, name, "retried", reason)
        return message if ask.again is None else ask.again(name)

    def _happened(self, ask: Ask[Answer], site: str, what: What, reason: str) -> None:
        self._events.append(Event(ask.call, site, what, reason, ask.seconds, ask.s))
        first = what in ("lost", "dropped") and site not in self._away
        level = logging.WARNING if first else logging.INFO
        place = ask.call if ask.t is None else f"{ask.call} of round {ask.t}"
        log.log(level, "%s: %s %s (%s)", place, site, what, reason)
        if first:
            self._away[site] = place
        elif what == "returned":
            del self._away[site]

    def _refuse_too_few(self, ask: Ask[Answer]) -> None:
        count = len(ask.messages)
        needed = self.needed(ask.call, count) if ask.needed is None else ask.needed
        if len(ask.given) < needed:
            first = next(name for name in ask.messages if name in ask.gone)
            raise ask.error(
                first,
                f"{ask.gone[first]}; {len(ask.given)} of {count} answered, {needed} needed",
                "mend the client and resume the run",
            )
