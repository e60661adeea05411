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
from autofedavg.core.local_rules import Kept
from autofedavg.core.privacy import NONE, Privacy
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Facts, Site
from autofedavg.federation.blind_calls import BlindCalls
from autofedavg.federation.calls import Ask, Calls
from autofedavg.federation.encoding import Sender
from autofedavg.federation.local_training import Along, LocalRequest, Reply, Trained, accompanied
from autofedavg.federation.messages import (
    Message,
    Traffic,
    Transport,
    facts_of,
)
from autofedavg.federation.personal import PersonalModels
from autofedavg.federation.proxy import Proxy
from autofedavg.federation.replies import (
    class_counts_of,
    lacks,
    trained_reply,
)
from autofedavg.federation.settings import Encoding, Exchange
from autofedavg.federation.spending import Spending
from autofedavg.federation.steps import outliers

FAR = 100.0  # times the others' median
PLAINLY = LocalRequest()
NOTHING: Along = {}


class Federation(BlindCalls):
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
        proxy: the server's own data and network, where it has data.
        privacy: the noise on what sites send; their replies must say what it cost.

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
        proxy: Proxy | None = None,
        privacy: Privacy = NONE,
    ) -> None:
        self.transport, self.seeds, self.exchange = transport, seeds, exchange
        self.secret, self.proxy = secret or seeds, proxy
        self._counted, self._remote, self.metric = counted, remote, metric
        self._validated, self.verdict = None, {}
        self.personal, self.personal_rows = PersonalModels(), {}
        self._keys = {}
        self._remarks: Facts = {}
        self.sites: tuple[Site, ...] = tuple(sorted(transport.roster(), key=lambda site: site.name))
        self.names: tuple[str, ...] = tuple(site.name for site in self.sites)
        self._position = {name: k for k, name in enumerate(self.names)}
        self.training_over = False
        super().__init__(Calls(transport, self.names, quorum or 0, exchange), Sender(exchange.down))
        self._calls.spending = Spending(privacy)

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
        fresh = bool(how.get("fresh"))
        start, up = self._starts(w, fresh)
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
            if reply.facts.get("kept") is True:
                return self._started_again(t, name, messages[name])
            return accompanied(self._sender.whole(start[name], messages[name].facts), along, name)

        messages = self._requests({} if fresh else start, facts, along, request.rule.keeps)
        replies = self._calls.ask(Ask("local_train", messages, read, t, mend=mend))
        self._sender.arrived(replies, w)
        trained = Trained.of(replies, request.rule)
        if request.rule.keeps:
            self.personal.states |= {name: reply.kept for name, reply in replies.items()}
        if isinstance(w, Model):
            if self._remote:
                self._record_outliers(t, w, trained.w_k)
            if up == self.exchange.down == "difference":
                self._sharing.uploaded(trained.w_k, uploads)
        return trained

    def _starts(self, w: Model | Bank, fresh: bool) -> tuple[dict[str, Model], Encoding]:
        """Every client's start, and how its model comes back."""
        start, up = {name: model_for(w, name) for name in self.names}, self.exchange.up
        if up == "difference":
            if fresh:  # a client's own initial weights are no reference that the server has
                up = "float32"
            elif isinstance(w, Bank):  # clients may train in its memory
                start = {name: model.clone() for name, model in start.items()}
        return start, up

    def _requests(
        self, start: Mapping[str, Model], facts: Facts, along: Along, keeps: bool
    ) -> dict[str, Message]:
        """Every client's request to train: from its start, with vectors and its own state."""
        plain, requests = Message({}, facts), {}
        for name in self.names:
            sent = self._sender.message(name, start[name], facts) if name in start else plain
            sent = accompanied(sent, along, name)
            own = {**sent.facts, **self.personal.facts(name)} if keeps else sent.facts
            requests[name] = Message(sent.arrays, own) if keeps else sent
        return requests

    def _started_again(self, t: int, name: str, message: Message) -> Message:
        """The request for a site that has lost what it kept: it starts from the global model."""
        reason = "it has lost its personal model, and starts again from the global one"
        if "blind" in message.facts:
            reason = "it has lost what it had learned of its weight, and starts again"
        self._calls.record("local_train", name, "restarted", reason, t)
        self.personal.forget(name)
        return Message(message.arrays, {**message.facts, "kept": ""})

    def copies(self) -> dict[str, Mapping[str, Tensor]]:
        """In a simulation: all that sites keep, for the run's checkpoint; elsewhere nothing."""
        needed = {name: self.personal.needed(name) for name in self.names}
        asked = {name: Message({}, {"digests": held}) for name, held in needed.items() if held}
        if self._remote or not asked:
            return {}
        replies = self.transport.ask("export_state", asked, None)
        return {name: r.arrays for name, r in replies.items() if isinstance(r, Message)}

    def kept(self, digests: Mapping[str, str]) -> dict[str, Kept]:
        """In a simulation: a state of each of some sites; elsewhere they stay at the sites."""
        if self._remote or not digests:
            return {}
        asked = {name: Message({}, {"digests": [digest]}) for name, digest in digests.items()}
        replies = self.transport.ask("export_state", asked, None)
        return {
            name: {key.partition("/")[2]: array for key, array in reply.arrays.items()}
            for name, reply in replies.items()
            if isinstance(reply, Message) and reply.arrays
        }

    def resume_personal(
        self, known: PersonalModels, copies: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Continues with what sites had kept; in a simulation they are given it back."""
        self.personal = known
        if copies and not self._remote:
            asked = {name: Message(arrays, {}) for name, arrays in copies.items()}
            self.transport.ask("import_state", asked, None)

    def _record_outliers(self, t: int, w: Model, w_k: Bank) -> None:
        """Records the sites whose models have moved much further than the others'."""
        far = {k: float(torch.linalg.vector_norm(w_k[k].values - w.values)) for k in w_k.sites}
        for name, middle in outliers(far, FAR).items():
            reason = f"its model has moved by {far[name]:.3g}, the others' by {middle:.3g}"
            self._calls.record("local_train", name, "outlying", reason, t)

    def as_sent(self, w: Model) -> Model:
        """A new global model as the clients will have it: w itself, but for lossy encodings."""
        return self._sender.settled(w)

    def class_counts(self, t: int) -> dict[str, list[int] | None]:
        """Training cases per class of every client; None where a client does not know them."""
        asked = dict.fromkeys(self.names, Message({}, {"t": t}))
        return self._calls.ask(
            Ask("class_counts", asked, lambda _, reply: class_counts_of(reply), t)
        )

    def take_account(self) -> dict[str, Traffic]:
        """Calls, seconds and bytes by kind of call since this was last called."""
        return self._calls.take_account()

    def remark(self, values: Facts) -> None:
        """Further plain values for the line of the round in rounds.jsonl."""
        self._remarks = {**self._remarks, **values}

    def take_remarks(self) -> Facts:
        """What methods have remarked since this was last called."""
        taken, self._remarks = self._remarks, {}
        return taken

    def take_spent(self) -> dict[str, list[list[Any]]]:
        """What private replies have cost since this was last called, by site (`Spending.take`)."""
        return self._calls.spending.take()

    def take_events(self) -> list[dict[str, Any]]:
        """Sites that were lost, dropped, retried, resent or back since this was last called."""
        return self._calls.take_events()
