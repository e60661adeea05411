"""One round of another engine as the transport below the port.

Training is over when the server gets here, so `local_train` is answered with the models that the
engine has collected. Models go out with the first step on beta: one message instead of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autofedavg.core.errors import from_outside
from autofedavg.core.site import Facts, Site
from autofedavg.federation.messages import Message, NoReply

MODELS = "models"  # the facts of the models, in a message that also carries beta


class Channel(Protocol):
    """What an engine supplies: requests to sites, by the engine's addresses."""

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        """Sends each address its message; returns its reply, or why there is none."""


@dataclass
class DropinTransport:
    """The transport of one round.

    Args:
        channel: the engine's.
        addresses: of the sites that have trained in this round, by name.
        trained: each site's reply to `local_train`.
        extra: facts that every request for a step also carries.
        last: the last step of LearnAggWeight, or of what judges it; models are kept until then.
    """

    channel: Channel
    addresses: Mapping[str, str]
    trained: Mapping[str, Message] = field(default_factory=dict)
    extra: Facts = field(default_factory=dict)
    last: int = 0
    _models: dict[str, Message] = field(default_factory=dict, init=False)  # not sent yet

    def roster(self) -> list[Site]:
        return [Site(name, {}) for name in sorted(self.addresses)]

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        if verb == "local_train":
            return {name: self.trained[name] for name in messages}
        if verb == "share_models":
            # All models of the round, also the site's own: its loop need not have kept it.
            for name, asked in messages.items():
                arrays = {
                    f"{kind}/{site}": array
                    for site in asked.facts["sites"]
                    for kind, array in self.trained[site].arrays.items()
                }
                self._models[name] = Message(arrays, asked.facts)
            return {name: Message() for name in messages}
        sent = {self.addresses[n]: self._with_models(n, asked) for n, asked in messages.items()}
        found = self.channel.ask(verb, sent, within)
        replies = {
            name: _printable(found.get(self.addresses[name], NoReply("no answer")))
            for name in messages
        }
        for name, reply in replies.items():
            if isinstance(reply, Message):
                self._models.pop(name, None)
        return replies

    def _with_models(self, name: str, message: Message) -> Message:
        if "s" not in message.facts:
            return message
        facts = {**message.facts, **self.extra}
        reached = int(facts["s"]) + int(facts.get("steps", 1)) - 1
        facts["keep"] = reached < self.last  # whether a later step needs the models
        models = self._models.get(name)
        if models is None:
            return Message(message.arrays, facts)
        return Message({**models.arrays, **message.arrays}, {**facts, MODELS: models.facts})


def _printable(reply: Message | NoReply) -> Message | NoReply:
    """A reply whose error, if it is one, can be shown."""
    if isinstance(reply, NoReply) or "error" not in reply.facts:
        return reply
    return Message({}, {key: from_outside(value) for key, value in reply.facts.items()})
