"""A fleet whose sites are lost, late, wrong or forgetful: at set times, so that runs repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, NoReply
from toy import DirectFleet


@dataclass
class Fault:
    """What goes wrong with a site's answer to a verb.

    Attributes:
        site, verb: where.
        what: "lost", "late", "forgets" or a key of `SPOILT`.
        t, s: the round and the step; any when None.
        times: how often, from the first time on; always when None.
    """

    site: str
    verb: str
    what: str
    t: int | None = None
    s: int | None = None
    times: int | None = None
    met: int = field(default=0, init=False)

    def strikes(self, site: str, verb: str, message: Message) -> bool:
        at = all(
            want is None or message.facts.get(key) == want
            for key, want in (("t", self.t), ("s", self.s))
        )
        if (site, verb) != (self.site, self.verb) or not at or self.met == self.times:
            return False
        self.met += 1
        return True


def _with(answer: Message, **facts: Any) -> Message:
    return Message(answer.arrays, {**answer.facts, **facts})


def _each(answer: Message, change: Callable[[torch.Tensor], torch.Tensor]) -> Message:
    return Message({key: change(array) for key, array in answer.arrays.items()}, answer.facts)


def _nan(array: torch.Tensor) -> torch.Tensor:
    if not array.is_floating_point():
        return array
    spoilt = array.clone()
    spoilt.view(-1)[0] = float("nan")
    return spoilt


SPOILT: dict[str, Callable[[Message], Message]] = {
    "nan": lambda answer: _each(answer, _nan),
    "shape": lambda answer: _each(answer, lambda array: array.reshape(-1)[:-1]),
    "type": lambda answer: _each(answer, lambda array: array.to(torch.float16)),
    "names": lambda answer: Message({f"x{k}": a for k, a in answer.arrays.items()}, answer.facts),
    "huge": lambda answer: _each(answer, lambda array: array + 1e30),
    "error": lambda answer: Message({}, {"error": "the disk is \x1b[31mfull"}),
    "no facts": lambda answer: Message(answer.arrays, {}),
    "loss": lambda answer: _with(answer, loss="low"),
    "score": lambda answer: _with(answer, score=float("inf")),
    "scores": lambda answer: _with(answer, scores=[["case", "score"]]),
}


class FlakyFleet(DirectFleet):
    """Clients in this process, with faults."""

    def __init__(self, problem, faults: Sequence[Fault] = (), **more) -> None:
        super().__init__(problem, **more)
        self.faults = list(faults)

    def ask(self, verb, messages, within):
        began = time.monotonic()
        answers = {}
        for name, message in messages.items():
            fault = next((f for f in self.faults if f.strikes(name, verb, message)), None)
            what = "" if fault is None else fault.what
            if what == "late":
                if within is not None:
                    time.sleep(max(0.0, began + within - time.monotonic()))
                self.asked.append((verb, name, message))
                answers[name] = NoReply(f"no answer within {within} s")
            elif what == "lost":
                self.asked.append((verb, name, message))
                answers[name] = NoReply("the connection was closed")
            else:
                if what == "forgets":
                    self.clients[name].client_state = ClientState()
                answers |= super().ask(verb, {name: message}, within)
                if what in SPOILT:
                    answers[name] = SPOILT[what](answers[name])
        return answers
