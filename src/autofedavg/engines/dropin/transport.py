"""One round of somebody else's engine as the fleet that the port asks.

Training is over when the server gets here, so `local_train` is answered from what the engine has
gathered. Models wait for the first step on beta and go with it: one message instead of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from autofedavg.core.errors import from_outside
from autofedavg.core.site import Facts, Site
from autofedavg.federation.messages import Message, NoReply

MODELS = "models"  # what is said of the models in a note that also carries beta


class Carrier(Protocol):
    """What an engine supplies: messages to sites, by the address it knows them under."""

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        """Sends each address its note; returns each one's answer, or why there is none."""


class DropinTransport:
    """The fleet of one round.

    Args:
        carrier: the engine's.
        addresses: of the sites that have trained in this round, by name.
        trained: what the engine has gathered of each.
        extra: what every message to a site also says.
        S: the steps of LearnAggWeight.
    """

    def __init__(
        self,
        carrier: Carrier,
        addresses: Mapping[str, str],
        trained: Mapping[str, Message] | None = None,
        extra: Facts | None = None,
        S: int = 0,
    ) -> None:
        self._carrier, self._addresses, self._trained = carrier, addresses, trained or {}
        self._extra, self._S = extra or {}, S
        self._bags: dict[str, Message] = {}

    def roster(self) -> list[Site]:
        return [Site(name, {}) for name in sorted(self._addresses)]

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        if verb == "local_train":
            return {name: self._trained[name] for name in messages}
        if verb == "share_models":
            self._bags |= {name: self._whole(message) for name, message in messages.items()}
            return {name: Message() for name in messages}
        sent = {
            self._addresses[name]: self._loaded(name, message) for name, message in messages.items()
        }
        answers = self._carrier.ask(verb, sent, within)
        named = {
            name: _plain(answers.get(self._addresses[name], NoReply("no answer")))
            for name in messages
        }
        for name, answer in named.items():
            if isinstance(answer, Message):
                self._bags.pop(name, None)
        return named

    def _whole(self, asked: Message) -> Message:
        """All models of the round, also the site's own: its loop need not have kept it."""
        bag = {
            f"{kind}/{site}": array
            for site in asked.facts["sites"]
            for kind, array in self._trained[site].arrays.items()
        }
        return Message(bag, asked.facts)

    def _loaded(self, name: str, message: Message) -> Message:
        if "s" not in message.facts:
            return message
        facts = {**message.facts, **self._extra}
        last = int(facts["s"]) + int(facts.get("steps", 1)) - 1
        facts["keep"] = last < self._S  # whether the models will be needed once more
        bag = self._bags.get(name)
        if bag is None:
            return Message(message.arrays, facts)
        return Message({**bag.arrays, **message.arrays}, {**facts, MODELS: bag.facts})


def _plain(answer: Message | NoReply) -> Message | NoReply:
    """An answer whose words, where it is an error, can be shown."""
    if isinstance(answer, NoReply) or "error" not in answer.facts:
        return answer
    return Message({}, {key: from_outside(value) for key, value in answer.facts.items()})
