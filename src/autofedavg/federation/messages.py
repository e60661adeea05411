"""What crosses the wire between server and clients, and what carries it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import FederationError, TrainingError, did_you_mean
from autofedavg.core.forms import Form
from autofedavg.core.layout import no_counters
from autofedavg.core.site import Facts, Site

NUMBERS = {float, int}

# The plain values that each request may carry. A client that passed over one that it does not know
# would answer another question than the server's.
_MODEL = frozenset({"form", "sent"})  # how a model travels
_STEP = frozenset({"t", "s", "data", "mode"})  # a step of LearnAggWeight

KNOWN: Mapping[str, frozenset[str]] = {
    "local_train": _MODEL
    | {"t", "T", "rule", "tell", "probe", "fresh", "rate", "passes", "weight_decay", "up"}
    | {"kept", "hold", "blind", "sum", "undo"},
    "share_models": frozenset({"t", "sites", "digest", "digests", "sent"}),
    "update_beta": _STEP | {"digest", "gamma", "layers", "rate", "smoothing", "steps", "optimiser"},
    "differentiate": _STEP | {"sent", "half"},
    "mixture_losses": frozenset({"t", "s", "steps", "data", "layers", "digest"}),
    "model_losses": frozenset({"t", "s", "steps", "data", "sent"}),
    "share_keys": frozenset({"t"}),
    "masked_gradient": _MODEL | {"t", "data", "mode", "batches", "size", "blind", "sum"},
    "evaluate": _MODEL | {"t", "split", "half", "sites", "personal", "kept", "means"},
    "validate_local": frozenset({"t", "metric", "digest", "form"}),
    "class_counts": frozenset({"t"}),
    "export_state": frozenset({"digests"}),
    "import_state": frozenset(),
}
# The port's own values say how models travel, and which; all others are the method's, or the run's.
PORT_VALUES = _MODEL | {"t", "up", "sites", "digest", "digests", "kept", "hold", "sum", "undo"}
# A model goes with the request, with its reply, or with both. All other requests are small.
WITH_MODELS = frozenset(
    {"differentiate", "evaluate", "local_train", "masked_gradient", "model_losses", "share_models"}
    | {"validate_local"}
)


@dataclass(frozen=True)
class Message:
    """All that ever crosses a wire: named tensors and plain JSON values."""

    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        size = 0
        for array in self.arrays.values():
            size += array.nbytes
        # Python writes finite numbers as JSON does, and sooner: every step on beta has K answers.
        numbers = NUMBERS.issuperset(map(type, self.facts.values()))
        return size + len(repr(self.facts) if numbers else json.dumps(self.facts))


@dataclass(frozen=True)
class NoReply:
    """A client that did not reply, and why."""

    reason: str


class Transport(Protocol):
    """The transport below the port; one small adapter per engine.

    Every request may be repeated: a client's reply depends only on the verb, the message and the
    client's state.
    """

    def roster(self) -> Sequence[Site]:
        """The sites that take part."""

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        """Sends each named site its message; returns each one's reply, or why there is none."""


class Score(NamedTuple):
    """One number about one case."""

    site: str
    case: str
    metric: str
    value: float


class SiteMean(NamedTuple):
    """The mean of a metric over a site's cases, and their number: all that it discloses."""

    site: str
    metric: str
    value: float
    cases: int


@dataclass(frozen=True)
class Scores:
    """Scores of one model on one split, all sites: of every case, or every site's means."""

    rows: tuple[Score | SiteMean, ...]

    def by_site(self, metric: str) -> dict[str, float]:
        """Mean over each site's cases."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            if row.metric == metric:
                found.setdefault(row.site, []).append(row.value)
        return {site: sum(values) / len(values) for site, values in found.items()}

    def mean(self, metric: str, before: Mapping[str, float] | None = None) -> float:
        """Mean over sites of the mean over cases: how the paper selects the global model.

        Args:
            metric: the score.
            before: earlier means of sites; one stands in for a site that has none here.

        Raises:
            FederationError: there is no such score.
        """
        means = {**(before or {}), **self.by_site(metric)}
        if not means:
            raise FederationError(
                f"no case of any site has a score called {metric}",
                client="all",
                call="evaluate",
                remedy="score every case by the study's metric",
            )
        return sum(means[site] for site in sorted(means)) / len(means)


@dataclass
class Traffic:
    """What one kind of call has cost."""

    calls: int = 0
    seconds: float = 0.0
    down: int = 0
    up: int = 0


def arrays_of(model: Model) -> dict[str, Tensor]:
    """A model as the arrays of a message."""
    empty = not model.counters.numel()
    return {"values": model.values, **({} if empty else {"counters": model.counters})}


def bag_of(bank: Bank) -> dict[str, Tensor]:
    """All models of a bank as the arrays of a message."""
    return {
        f"{kind}/{site}": array
        for site in bank.sites
        for kind, array in arrays_of(bank[site]).items()
    }


def facts_of(w: Model | Bank) -> Facts:
    """The plain values that go with a model: its form, where it is not the task's own."""
    return {} if w.form is None else {"form": w.form.note()}


def model_of(arrays: Mapping[str, Tensor], site: str = "", form: Form | None = None) -> Model:
    """The model in a message's arrays; with `site`, that site's model of several."""
    tail = f"/{site}" if site else ""
    values = arrays[f"values{tail}"]
    counters = arrays.get(f"counters{tail}", no_counters(values.device))
    return Model(values, counters, form)


def total_bytes(messages: Iterable[Message]) -> int:
    """Bytes of many messages; one that is sent to all is measured once."""
    sizes: dict[int, int] = {}
    total = 0
    for message in messages:
        size = sizes.get(id(message))
        if size is None:
            size = sizes[id(message)] = message.nbytes
        total += size
    return total


def refuse_unknown(site: str, verb: str, facts: Mapping[str, Any]) -> None:
    """Refuses a request, or a value of one, that this client does not know.

    Raises:
        TrainingError: it names the request, or the value.
    """
    known = KNOWN.get(verb)
    if known is None:
        raise TrainingError(f"unknown request {verb!r}", where=f"client {site}")
    unknown = sorted(facts.keys() - known)
    if unknown:
        raise TrainingError(
            f"unknown value {unknown[0]!r} for {verb}",
            where=f"client {site}",
            remedy=f"{did_you_mean(unknown[0], known)} Have the same version at server and sites",
        )
