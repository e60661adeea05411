"""The port: all that a server may ask of K clients, over any engine.

Each call is written once, over an engine's `Transport`, which supplies only `roster` and `ask`.
What all calls have in common is in `calls`; `replies` checks what comes back; the calls of
LearnAggWeight are in `steps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model, model_for
from autofedavg.core.errors import FederationError
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Facts, Site
from autofedavg.federation.calls import Ask, Calls
from autofedavg.federation.encoding import Sender
from autofedavg.federation.local_training import Along, LocalRequest, Reply, Trained, accompanied
from autofedavg.federation.messages import (
    Message,
    Score,
    Scores,
    Traffic,
    Transport,
    arrays_of,
    bag_of,
    facts_of,
)
from autofedavg.federation.replies import (
    class_counts_of,
    lacks,
    no_arrays,
    number,
    scores_of,
    trained_reply,
)
from autofedavg.federation.settings import Exchange
from autofedavg.federation.steps import LearningCalls, outliers

FAR = 100.0  # times the others' median
PLAINLY = LocalRequest()
NOTHING: Along = {}


class Federation(LearningCalls):
    """K clients in a fixed order, by site name.

    Args:
        transport: the engine's transport.
        quorum: how many clients must reply to a call; None or 0 for all of them.
        exchange: time limits, quorums of single calls, retries, bad replies, encodings.
        seeds: the run's random streams, for what the server itself draws.
        secret: the streams of the mixtures that clients are sent, which no client may know; the
            seeds if not given, where all clients are on one machine (decision 44).
        counted: whether the roster's numbers of cases are those that are scored.
        remote: whether clients are on other machines. They are then sent the round of every
            evaluation, which they check, and the digest of the model that they validate. Models
            that lie far from all others are recorded (decision 45).
        metric: the score that models are chosen by, for methods that weigh clients by it.

    Note:
        With a quorum below K the method continues with those that replied (decisions 14 and 31);
        full participation is exactly Algorithm 1.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        quorum: int | None = None,
        exchange: Exchange = Exchange(),  # noqa: B008 - frozen
        seeds: Seeds = Seeds(0),  # noqa: B008 - frozen
        secret: Seeds | None = None,
        counted: bool = True,
        remote: bool = False,
        metric: str = "",
    ) -> None:
        self.transport, self.seeds, self.exchange = transport, seeds, exchange
        self.secret = secret or seeds
        self._counted, self._remote, self.metric = counted, remote, metric
        self._validated: tuple[int, Model, Bank, Scores, dict[str, float]] | None = None
        self.sites: tuple[Site, ...] = tuple(sorted(transport.roster(), key=lambda site: site.name))
        self.names: tuple[str, ...] = tuple(site.name for site in self.sites)
        self._position = {name: k for k, name in enumerate(self.names)}
        self.training_over = False
        super().__init__(Calls(transport, self.names, quorum or 0, exchange), Sender(exchange.down))

    @property
    def K(self) -> int:
        return len(self.sites)

    @property
    def quorum(self) -> int:
        """The smallest quorum of any call."""
        return self.exchange.least(self._calls.quorum, self.K)

    def rows(self, names: Sequence[str]) -> list[int]:
        """The positions of these clients in the fixed order."""
        return [self._position[name] for name in names]

    def local_train(
        self,
        t: int,
        w: Model | Bank,
        *,
        T: int,
        request: LocalRequest = PLAINLY,
        along: Along = NOTHING,
        **how: Any,
    ) -> Trained:
        """LocalTrain on every client, from the global w or, given a bank, each from its own row.

        Args:
            t: the round.
            w: the model to start from.
            T: the last round.
            request: the local rule, and what is to be told besides the model.
            along: vectors for the rule, by name: one for all clients, or one for each.
            **how: plain values for the clients: `fresh`, to start from initial weights of its own
                instead of w; `rate` and `passes`, factors on the step size and the length;
                `weight_decay`.

        Returns:
            What those that replied have trained and told.
        """
        start = {name: model_for(w, name) for name in self.names}
        fresh, up = bool(how.get("fresh")), self.exchange.up
        if up == "difference":
            if fresh:  # a client's own initial weights are no reference that the server has
                up = "float32"
            elif isinstance(w, Bank):  # clients may train in its memory
                start = {name: model.clone() for name, model in start.items()}
        facts = {"t": t, **facts_of(w), "T": T, **request.facts(), **how}
        facts |= {} if up == "float32" else {"up": up}
        self._sender.begin(w)
        uploads: dict[str, Mapping[str, Tensor]] = {}

        def read(name: str, reply: Message) -> Reply:
            found = trained_reply(reply, start[name], up, request)
            uploads[name] = reply.arrays
            return found

        def mend(name: str, reply: Message) -> Message | None:
            if not lacks(reply):
                return None
            return accompanied(self._sender.whole(start[name], facts), along, name)

        plain = Message({}, facts)
        messages = {
            name: plain if fresh else self._sender.message(name, model, facts)
            for name, model in start.items()
        }
        messages = {name: accompanied(sent, along, name) for name, sent in messages.items()}
        replies = self._calls.ask(Ask("local_train", messages, read, t, mend=mend))
        self._sender.arrived(replies, w)
        trained = Trained.of(replies, request.rule)
        if isinstance(w, Model):
            if self._remote:
                self._record_outliers(t, w, trained.w_k)
            if up == self.exchange.down == "difference":
                self._sharing.uploaded(trained.w_k, uploads)
        return trained

    def _record_outliers(self, t: int, w: Model, w_k: Bank) -> None:
        """Records the sites whose models have moved much further than the others'."""
        far = {k: float(torch.linalg.vector_norm(w_k[k].values - w.values)) for k in w_k.sites}
        for name, middle in outliers(far, FAR).items():
            reason = f"its model has moved by {far[name]:.3g}, the others' by {middle:.3g}"
            self._calls.record("local_train", name, "outlying", reason, t)

    def as_sent(self, w: Model) -> Model:
        """A new global model as the clients will have it: w itself, but for lossy encodings."""
        return self._sender.settled(w)

    def evaluate(
        self,
        w: Model | Bank | Mapping[str, Model],
        split: str,
        metric: str | None = None,
        *,
        record: bool = False,
        t: int | None = None,
    ) -> Scores:
        """Scores one model, or a bank as one ensemble, on every client's cases of a split.

        Given a model for each of some clients, every one of them scores its own. For the test
        split `test_quorum` counts, which is all clients by default: a table without holes.

        Args:
            w: what is scored.
            split: the cases.
            metric: the score that every case must have; None for any.
            record: only for the record of a round. Nothing is chosen by it, so the test split is
                open, and the quorum is the usual one.
            t: the round that it belongs to; T for the final test.

        Raises:
            FederationError: the test split is asked for before training is over.
        """
        known = self._validated
        if known and split == "validation" and w is known[1]:
            return known[3]
        if split == "test" and not self.training_over and not record:
            raise FederationError(
                "the test cases stay closed until training is over",
                client="all",
                call="evaluate",
                remedy="use the validation split to choose a model",
            )
        facts: Facts = {"split": split, **({"t": t} if self._remote else {})}
        facts |= {} if isinstance(w, Mapping) else facts_of(w)
        if isinstance(w, Model):
            asked = {name: self._sender.message(name, w, facts) for name in self.names}
        elif isinstance(w, Mapping):
            asked = {k: Message(arrays_of(own), {**facts, **facts_of(own)}) for k, own in w.items()}
        else:
            asked = dict.fromkeys(self.names, Message(bag_of(w), {**facts, "sites": list(w.sites)}))

        def read(name: str, reply: Message) -> list[Score]:
            site = self.sites[self._position[name]]
            return scores_of(reply, site if self._counted else Site(name, {}), split, metric)

        def mend(_: str, reply: Message) -> Message | None:
            return self._sender.whole(w, facts) if isinstance(w, Model) and lacks(reply) else None

        final = split == "test" and not record
        needed = min(self.exchange.tested(self.K), len(asked)) if final else None
        replies = self._calls.ask(Ask("evaluate", asked, read, needed=needed, mend=mend))
        if isinstance(w, Model):
            self._sender.arrived(replies, w)
        return Scores(tuple(row for rows in replies.values() for row in rows))

    def validate_local(self, t: int, w_k: Bank, metric: str) -> dict[str, float]:
        """The mean validation score of its own w_k, of every client that trained in round t.

        A client that has lost its model since, or has a different one, is sent it again.
        """
        known = self._validated
        if known and known[0] == t and w_k is known[2]:
            return known[4]
        facts = {"t": t, "metric": metric}
        altered = self._sharing.altered

        def read(_: str, reply: Message) -> float:
            no_arrays(reply)
            return number(reply, "score")

        def whole(name: str) -> Message:
            return Message(arrays_of(w_k[name]), {**facts, **facts_of(w_k)})

        def mend(name: str, reply: Message) -> Message | None:
            if not lacks(reply):
                return None
            if reply.facts.get("altered") is True:
                altered.add(name)
            return whole(name)

        asked = dict.fromkeys(w_k.sites, Message({}, facts))
        if self._remote:
            asked = {
                name: whole(name)
                if name in altered
                else Message({}, {**facts, "digest": w_k[name].digest()})
                for name in w_k.sites
            }
        return self._calls.ask(Ask("validate_local", asked, read, t, mend=mend))

    def validated(self, t: int, w: Model, w_k: Bank) -> tuple[dict[str, float], dict[str, float]]:
        """Validation scores by site, of the global model w and of every client's own w_k.

        The run asks for the same scores after the round: it is given these.
        """
        own = self.validate_local(t, w_k, self.metric)
        scores = self.evaluate(w, "validation", self.metric, t=t)
        self._validated = (t, w, w_k, scores, own)
        return scores.by_site(self.metric), own

    def class_counts(self, t: int) -> dict[str, list[int] | None]:
        """Training cases per class of every client; None where a client does not know them."""
        asked = dict.fromkeys(self.names, Message({}, {"t": t}))
        return self._calls.ask(
            Ask("class_counts", asked, lambda _, reply: class_counts_of(reply), t)
        )

    def take_account(self) -> dict[str, Traffic]:
        """Calls, seconds and bytes by kind of call since this was last called."""
        return self._calls.take_account()

    def take_events(self) -> list[dict[str, Any]]:
        """Sites that were lost, dropped, retried, resent or back since this was last called."""
        return self._calls.take_events()
