"""Local rules: how a client trains, by name.

A message names a rule and its numbers; the code is at the sites. A rule adds terms to the gradient
of every step, or has a training of its own. What the server sends along, and wants back, are
vectors over the trainable part of the model, (D',) each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import AutoFedAvgError, TrainingError
from autofedavg.core.registry import Registry
from autofedavg.core.settings import Settings
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Batch, LocalTrainer, Training

Tell = Literal["steps", "reach", "rate"]
Kept = Mapping[str, Tensor]  # what a rule leaves at a site, by name


@dataclass
class LocalWork:
    """One LocalTrain at a site, as its rule sees it.

    Attributes:
        start: the model that the site was sent; it is in the network when the rule begins.
        batches: the M_k batches of the round; the same ones whenever asked.
        rate: the step size.
        vectors: what was sent along, by name.
        kept: what the rule left at this site in the last round that it took part in.
        seeded: starts the round's stream of random numbers again, for a second training.
        back: what the rule sends to the server, by name.
        keep: what the rule leaves at this site.
    """

    start: Model
    batches: Callable[[], Iterable[Batch]]
    rate: float
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Kept | None = None
    seeded: Callable[[], AbstractContextManager[None]] = nullcontext
    back: dict[str, Tensor] = field(default_factory=dict)
    keep: dict[str, Tensor] = field(default_factory=dict)

    def own(self) -> Model:
        """The model that is kept here; the one that was sent where there is none yet."""
        return self.start if self.kept is None else kept_model(self.kept)


class LocalRule(Settings):
    """How a client trains; a subclass has a `name`, its numbers as fields, and `train`."""

    name: str
    vectors: ClassVar[tuple[str, ...]] = ()  # what must be sent along
    keeps: ClassVar[bool] = False  # whether it leaves something at the site

    @property
    def returns(self) -> tuple[str, ...]:
        """The vectors that it sends to the server."""
        return ()

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        """Trains the network, which holds the start; returns the loss of every step."""
        raise NotImplementedError

    def predictor(self, layout: Layout, w: Model, kept: Kept) -> Model:
        """The site's personal model, from the global w and from what it keeps."""
        return kept_model(kept)

    def note(self) -> Facts:
        """The rule as plain values of a message."""
        return self.model_dump(mode="json")


class Plain(LocalRule):
    """The task's optimiser on the site's loss: FedAvg's LocalTrain."""

    name: Literal["plain"] = "plain"

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        return network.train(work.batches(), work.rate)


class Prox(LocalRule):
    """FedProx: adds mu (w - w^{t-1}) to every gradient."""

    name: Literal["prox"] = "prox"
    mu: float

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        return network.train(work.batches(), work.rate, mu=self.mu)


class Shift(LocalRule):
    """Adds the vector `shift` to every gradient: SCAFFOLD's c - c_k.

    Sends back `mean_gradient`, the mean of the mini-batch gradients before anything was added,
    where `mean_gradient` says so.
    """

    name: Literal["shift"] = "shift"
    vectors: ClassVar[tuple[str, ...]] = ("shift",)
    mean_gradient: bool = False

    @property
    def returns(self) -> tuple[str, ...]:
        return ("mean_gradient",) if self.mean_gradient else ()

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        shift = work.vectors["shift"]
        losses = network.train(
            work.batches(), work.rate, shift=shift, mean_gradient=self.mean_gradient
        )
        if self.mean_gradient:
            work.back["mean_gradient"] = network.mean_gradient()
        return losses


class Keep(Plain):
    """Plain training whose result stays at the site as its personal model."""

    name: Literal["keep"] = "keep"  # type: ignore[assignment]
    keeps: ClassVar[bool] = True

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        losses = super().train(network, work)
        work.keep = kept_arrays(network.state())
        return losses


class Personal(LocalRule):
    """Ditto: besides w_k, a personal model v_k is trained with a pull mu towards the global w."""

    name: Literal["personal"] = "personal"
    keeps: ClassVar[bool] = True
    mu: float = Field(ge=0, allow_inf_nan=False)

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        losses = network.train(work.batches(), work.rate)
        result = network.model()
        with work.seeded():
            network.load(work.own())
            anchor = work.start.values[: network.layout.trainable]
            network.train(work.batches(), work.rate, mu=self.mu, anchor=anchor)
        work.keep = kept_arrays(network.model())
        network.load(result)
        return losses


def kept_arrays(model: Model) -> dict[str, Tensor]:
    """A model as what a site keeps."""
    return {"values": model.values, "counters": model.counters}


def kept_model(kept: Kept) -> Model:
    """What `kept_arrays` was given."""
    return Model(kept["values"], kept["counters"])


LOCAL_RULES = Registry(
    "local rule",
    {
        "apfl": "autofedavg.methods.apfl:Mixed",
        "fedbn": "autofedavg.methods.fedbn:OwnNormalisation",
        "keep": "autofedavg.core.local_rules:Keep",
        "personal": "autofedavg.core.local_rules:Personal",
        "pfedme": "autofedavg.methods.pfedme:Envelope",
        "plain": "autofedavg.core.local_rules:Plain",
        "prox": "autofedavg.core.local_rules:Prox",
        "shift": "autofedavg.core.local_rules:Shift",
    },
    group="autofedavg.local_rules",
    base="autofedavg.core.local_rules:LocalRule",
)
PLAIN = Plain()


def rule_of(note: Any, place: str) -> LocalRule:
    """The rule that a message names; `plain` where it names none.

    Raises:
        TrainingError: an unknown rule or number, or a number that is out of bounds.
    """
    if note is None:
        return PLAIN
    name = note.get("name") if isinstance(note, Mapping) else note
    remedy = "have the same version at server and sites"
    if not isinstance(name, str):
        raise TrainingError(f"{name!r} is not a local rule", where=place, remedy=remedy)
    try:
        rule: LocalRule = LOCAL_RULES[name].model_validate(dict(note))
    except ValidationError as error:
        first = error.errors()[0]
        number = ".".join(map(str, first["loc"]))
        raise TrainingError(
            f"local rule {name!r}: {number}: {first['msg']}", where=place, remedy=remedy
        ) from None
    except AutoFedAvgError as error:
        raise TrainingError(error.what, where=place, remedy=error.remedy or remedy) from error
    return rule


def reach(training: Training, rule: LocalRule, steps: int, rate: float) -> float:
    """A_k: how far `steps` local steps go against a gradient of 1, in units of the step size.

    The optimiser is run on one number that starts at 0 (FedNova's ||a_k||_1): exact for SGD with
    momentum, weight decay and FedProx's pull. Adam divides by the gradient's size: A_k is the
    number of steps.

    Example:
        >>> sgd = Training(optimiser="sgd", momentum=0.9)
        >>> round(reach(sgd, PLAIN, 2, 0.1), 12)
        2.9
    """
    if training.optimiser == "adam":
        return float(steps)
    mu = rule.mu if isinstance(rule, Prox) else 0.0
    return _reach(steps, rate, training.momentum, training.weight_decay + mu)


@lru_cache(maxsize=1024)
def _reach(steps: int, rate: float, momentum: float, pull: float) -> float:
    moved = velocity = 0.0  # the distance already gone pulls back
    for _ in range(steps):
        velocity = momentum * velocity + 1 - rate * pull * moved
        moved += velocity
    return moved
