"""LocalTrain at the port: what a method asks for, what a site does, what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import TrainingError
from autofedavg.core.forms import Form
from autofedavg.core.layout import Layout
from autofedavg.core.local_rules import PLAIN, LocalRule, LocalWork, Tell, reach
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Training
from autofedavg.federation.blind_site import BlindTraining
from autofedavg.federation.messages import Message
from autofedavg.federation.settings import Encoding

ALONG, BACK = "along/", "back/"  # before the names of vectors that go with a model
TOLD: tuple[Tell, ...] = ("steps", "reach", "rate")
Along = Mapping[str, Tensor | Mapping[str, Tensor]]  # by name: one for all sites, or by site


@dataclass(frozen=True)
class Probe:
    """The loss of the model that a site is sent, on its own data, before it trains.

    Attributes:
        split: the cases.
        batches: how many mini-batches of them.
    """

    split: Literal["train", "validation", "holdout"] = "train"
    batches: int = 4

    def note(self) -> Facts:
        return {"split": self.split, "batches": self.batches}


@dataclass(frozen=True)
class LocalRequest:
    """What a method asks of LocalTrain besides the model.

    Attributes:
        rule: how clients train.
        tell: numbers that come with the model: "steps", tau_k; "reach", A_k; "rate", eta.
        probe: a loss to be found before training.
        length: D', of the vectors that the rule sends back.
    """

    rule: LocalRule = PLAIN
    tell: tuple[Tell, ...] = ()
    probe: Probe | None = None
    length: int = 0

    def facts(self) -> Facts:
        """The plain values of its messages; none for FedAvg's own training."""
        facts: Facts = {} if self.rule == PLAIN else {"rule": self.rule.note()}
        facts |= {"tell": list(self.tell)} if self.tell else {}
        return facts | ({"probe": self.probe.note()} if self.probe else {})


class Reply(NamedTuple):
    """What one site has replied to LocalTrain, checked."""

    model: Model
    loss: float | None
    told: Mapping[str, float]
    back: Mapping[str, Tensor]
    kept: str


@dataclass(frozen=True)
class Trained:
    """What LocalTrain gives back, of the sites that replied.

    Attributes:
        w_k: the trained models.
        losses: the mean training losses; none where training is differentially private.
        steps: tau_k, the local steps taken, where they were asked for.
        reach: A_k, the length of the local path (`local_rules.reach`), likewise.
        rate: eta, the local step size of the round, likewise.
        probed: the losses of the model that was sent, likewise.
        back: the vectors that the rule sends back, by name and site.
    """

    w_k: Bank
    losses: Mapping[str, float]
    steps: Mapping[str, int] = field(default_factory=dict)
    reach: Mapping[str, float] = field(default_factory=dict)
    rate: Mapping[str, float] = field(default_factory=dict)
    probed: Mapping[str, float] = field(default_factory=dict)
    back: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, replies: Mapping[str, Reply], rule: LocalRule) -> Trained:
        def told(what: str) -> dict[str, Any]:
            return {k: reply.told[what] for k, reply in replies.items() if what in reply.told}

        return cls(
            Bank.gather({name: reply.model for name, reply in replies.items()}),
            {name: reply.loss for name, reply in replies.items() if reply.loss is not None},
            {name: int(steps) for name, steps in told("steps").items()},
            told("reach"),
            told("rate"),
            told("probe"),
            {what: {k: r.back[what] for k, r in replies.items()} for what in rule.returns},
        )


@dataclass(frozen=True)
class LocalTraining:
    """One LocalTrain at a site: from which model, how, and how the result is sent."""

    t: int
    start: Model
    training: Training
    rate: float
    rule: LocalRule
    vectors: Mapping[str, Tensor]
    form: Form | None
    up: Encoding
    said: Facts  # what the reply says besides the loss
    tell: tuple[Tell, ...] = ()
    kept: str = ""  # the state that it continues from
    hold: tuple[str, ...] = ()  # other states that it may not drop
    blind: BlindTraining | None = None  # the result goes into a sum, and is not shown

    def facts(self, loss: float, steps: int) -> Facts:
        """The plain values of the reply."""
        found: Facts = {"loss": loss, **self.said}
        if "steps" in self.tell:
            found["steps"] = steps
        if "reach" in self.tell:
            found["reach"] = reach(self.training, self.rule, steps, self.rate)
        if "rate" in self.tell:
            found["rate"] = self.rate
        return found


def vectors_of(message: Message, rule: LocalRule, layout: Layout, place: str) -> dict[str, Tensor]:
    """The vectors that were sent along: those that the rule names, (D',), finite.

    Raises:
        TrainingError: one is missing, unknown, or does not fit the network.
    """
    sent = {k.removeprefix(ALONG): a for k, a in message.arrays.items() if k.startswith(ALONG)}
    remedy = "have the same version and study at server and sites"
    if set(sent) != set(rule.vectors):
        wanted, got = sorted(rule.vectors), sorted(sent)
        raise TrainingError(
            f"local rule {rule.name!r} needs the vectors {wanted} and was sent {got}",
            where=place,
            remedy=remedy,
        )
    for name, vector in sent.items():
        fits = (vector.shape, vector.dtype) == ((layout.trainable,), layout.dtype)
        if not fits or not bool(torch.isfinite(vector).all()):
            raise TrainingError(
                f"the vector {name!r} is not {layout.trainable} finite numbers of {layout.dtype}",
                where=place,
                remedy=remedy,
            )
    return sent


def accompanied(message: Message, along: Along, site: str) -> Message:
    """The message with the vectors that go along to this site."""
    if not along:
        return message
    sent = {k: v if isinstance(v, Tensor) else v[site] for k, v in along.items()}
    return Message({**message.arrays, **{f"{ALONG}{k}": v for k, v in sent.items()}}, message.facts)


def tell_of(how: Facts, place: str) -> tuple[Tell, ...]:
    """The numbers that a request wants to be told."""
    wanted = how.get("tell", [])
    unknown = [name for name in wanted if name not in TOLD]
    if unknown:
        raise TrainingError(f"cannot tell {unknown[0]!r}; {', '.join(TOLD)} can", where=place)
    return tuple(wanted)


def reply_arrays(arrays: Mapping[str, Tensor], work: LocalWork) -> dict[str, Tensor]:
    """A model's arrays with what the rule sends back."""
    return {**arrays, **{f"{BACK}{name}": vector for name, vector in work.back.items()}}
