"""The port's calls about scores: of the global model, of clients' own, of personal ones."""

from __future__ import annotations

from collections.abc import Mapping

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import FederationError
from autofedavg.core.halves import half_size
from autofedavg.core.local_rules import LocalRule
from autofedavg.core.site import Facts, Site
from autofedavg.federation.calls import Ask
from autofedavg.federation.disclosure import ScoreRequest, SiteScore, means_wanted
from autofedavg.federation.loss_calls import LossCalls
from autofedavg.federation.messages import (
    Message,
    Scores,
    arrays_of,
    bag_of,
    facts_of,
)
from autofedavg.federation.personal import PersonalModels
from autofedavg.federation.replies import (
    LOST,
    BadReply,
    lacks,
    no_arrays,
    number,
)
from autofedavg.federation.settings import Exchange


class ScoringCalls(LossCalls):
    """Scores of models at the clients.

    Attributes:
        personal: which personal models the sites keep.
        personal_rows: the scores of every site's personal predictor that was scored last.
    """

    sites: tuple[Site, ...]
    names: tuple[str, ...]
    exchange: Exchange
    metric: str
    training_over: bool
    _position: dict[str, int]
    _counted: bool
    _remote: bool
    _validated: tuple[int, Model, Bank, Scores, dict[str, float]] | None
    personal: PersonalModels
    personal_rows: dict[str, list[SiteScore]]

    @property
    def K(self) -> int:
        return len(self.sites)

    def evaluate(
        self,
        w: Model | Bank | Mapping[str, Model | str],
        split: str,
        metric: str | None = None,
        *,
        record: bool = False,
        t: int | None = None,
        personal: LocalRule | None = None,
        half: int | None = None,
    ) -> Scores:
        """Scores one model, or a bank as one ensemble, on every client's cases of a split.

        Given a model for each of some clients, every one of them scores its own; so it does where
        it is given the digest of a personal predictor that it keeps. For the test
        split `test_quorum` counts, which is all clients by default: a table without holes.

        Args:
            w: what is scored.
            split: the cases.
            metric: the score that every case must have; None for any.
            record: only for the record of a round. Nothing is chosen by it, so the test split is
                open, and the quorum is the usual one.
            t: the round that it belongs to; T for the final test.
            personal: the rule whose personal predictors are scored as well, each at its own site;
                `personal` then has their digests and scores.
            half: score a half of the split's cases only, 0 or 1 (`core.halves`).

        Raises:
            FederationError: the test split is asked for before training is over.
        """
        known = self._validated
        whole = personal is None and half is None
        if known and split == "validation" and w is known[1] and whole:
            return known[3]
        if split == "test" and not self.training_over and not record:
            raise FederationError(
                "the test cases stay closed until training is over",
                client="all",
                call="evaluate",
                remedy="use the validation split to choose a model",
            )
        scored = ScoreRequest(split, metric, means_wanted(self.exchange, metric or self.metric))
        facts: Facts = {"split": split, **({"t": t} if self._remote else {}), **scored.means}
        facts |= {} if half is None else {"half": half}
        asked = self._evaluations(w, facts, personal)
        found: dict[str, tuple[str, list[SiteScore]]] = {}
        final = split == "test" and not record

        def read(name: str, reply: Message) -> list[SiteScore]:
            site = self.sites[self._position[name]]
            site = site if self._counted else Site(name, {})
            if half is not None and split in site.cases:
                site = Site(name, {split: half_size(site.cases[split], half)})
            if lacks(reply):
                raise BadReply(LOST)

            both = "personal" in asked[name].facts
            rows, own = scored.read(reply, site, both=both, needed=final)
            found.update(own)
            return rows

        def mend(name: str, reply: Message) -> Message | None:
            if not isinstance(w, Model) or not lacks(reply):
                return None
            return self._sender.whole(w, asked[name].facts)

        needed = min(self.exchange.tested(self.K), len(asked)) if final else None
        replies = self._calls.ask(Ask("evaluate", asked, read, needed=needed, mend=mend))
        if isinstance(w, Model):
            self._sender.arrived(replies, w)
        self._note_personal(found, metric)
        return Scores(tuple(row for rows in replies.values() for row in rows))

    def _evaluations(
        self,
        w: Model | Bank | Mapping[str, Model | str],
        facts: Facts,
        personal: LocalRule | None,
    ) -> dict[str, Message]:
        """The requests of an evaluation."""
        if isinstance(w, Bank):
            said = {**facts, **facts_of(w), "sites": list(w.sites)}
            return dict.fromkeys(self.names, Message(bag_of(w), said))
        if isinstance(w, Mapping):
            return {
                name: Message({}, {**facts, "kept": own})
                if isinstance(own, str)
                else Message(arrays_of(own), {**facts, **facts_of(own)})
                for name, own in w.items()
            }
        facts |= facts_of(w)
        if personal is None:
            return {name: self._sender.message(name, w, facts) for name in self.names}
        rule, states = personal.note(), self.personal.states
        each = {k: {**facts, "personal": rule, "kept": states[k]} for k in states}
        return {k: self._sender.message(k, w, each.get(k, facts)) for k in self.names}

    def _note_personal(
        self, found: Mapping[str, tuple[str, list[SiteScore]]], metric: str | None
    ) -> None:
        self.personal_rows = {name: scores for name, (_, scores) in found.items()}
        for name, (digest, scores) in found.items():
            self.personal.predictors[name] = digest
            found_scores = Scores(tuple(scores)).by_site(metric or self.metric)
            self.personal.scores[name] = found_scores[name]

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
