"""One round of somebody else's engine as the fleet that the port asks.

Training is over when the server gets here, so `local_train` is answered from what the engine has
gathered. Models wait for the first step on beta and go with it: one message instead of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from autofedavg.core.errors import from_outside
from autofedavg.core.site import Facts, Site
from autofedavg.federation.messages import Lost, Note

MODELS = "models"  # what is said of the models in a note that also carries beta


class Carrier(Protocol):
    """What an engine supplies: messages to sites, by the address it knows them under."""

    def ask(
        self, verb: str, notes: Mapping[str, Note], within: float | None
    ) -> Mapping[str, Note | Lost]:
        """Sends each address its note; returns each one's answer, or why there is none."""


class Courier:
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
        trained: Mapping[str, Note] | None = None,
        extra: Facts | None = None,
        S: int = 0,
    ) -> None:
        self._carrier, self._addresses, self._trained = carrier, addresses, trained or {}
        self._extra, self._S = extra or {}, S
        self._bags: dict[str, Note] = {}

    def roster(self) -> list[Site]:
        return [Site(name, {}) for name in sorted(self._addresses)]

    def ask(
        self, verb: str, notes: Mapping[str, Note], within: float | None
    ) -> Mapping[str, Note | Lost]:
        if verb == "local_train":
            return {name: self._trained[name] for name in notes}
        if verb == "share_models":
            self._bags |= {name: self._whole(note) for name, note in notes.items()}
            return {name: Note() for name in notes}
        sent = {self._addresses[name]: self._loaded(name, note) for name, note in notes.items()}
        answers = self._carrier.ask(verb, sent, within)
        named = {
            name: _plain(answers.get(self._addresses[name], Lost("no answer"))) for name in notes
        }
        for name, answer in named.items():
            if isinstance(answer, Note):
                self._bags.pop(name, None)
        return named

    def _whole(self, asked: Note) -> Note:
        """All models of the round, also the site's own: its loop need not have kept it."""
        bag = {
            f"{kind}/{site}": array
            for site in asked.facts["sites"]
            for kind, array in self._trained[site].arrays.items()
        }
        return Note(bag, asked.facts)

    def _loaded(self, name: str, note: Note) -> Note:
        if "s" not in note.facts:
            return note
        facts = {**note.facts, **self._extra}
        last = int(facts["s"]) + int(facts.get("steps", 1)) - 1
        facts["keep"] = last < self._S  # whether the models will be needed once more
        bag = self._bags.get(name)
        if bag is None:
            return Note(note.arrays, facts)
        return Note({**bag.arrays, **note.arrays}, {**facts, MODELS: bag.facts})


def _plain(answer: Note | Lost) -> Note | Lost:
    """An answer whose words, where it is an error, can be shown."""
    if isinstance(answer, Lost) or "error" not in answer.facts:
        return answer
    return Note({}, {key: from_outside(value) for key, value in answer.facts.items()})
