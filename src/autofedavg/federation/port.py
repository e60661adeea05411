"""The port: all that a server may ask of K clients, over any engine.

Eight members (`sites`, `local_train`, `share_models`, `update_beta`, `differentiate`, `evaluate`,
`validate_local`, `class_counts`) are written once over a thin transport, the `Transport`. An engine
supplies only `roster` and `ask`. What all calls have in common is in `calls`; what an answer must
be is in `answers`.
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
    trained_model,
)
from autofedavg.federation.sending import Sending
from autofedavg.federation.settings import Encoding, Exchange
from autofedavg.federation.share_models import Sharing
from autofedavg.federation.steps import Steps, outliers

FAR = 100.0  # times the others' median


class Federation:
    """K clients in a fixed order, by site name.

    Args:
        transport: the engine's transport.
        quorum: how many clients must answer a call; None or 0 for all of them.
        exchange: time limits, quorums of single calls, retries, bad answers, encodings.
        seeds: the run's random streams, for what the server itself draws.
        secret: what no client may know of it: the mixtures that clients are sent; the seeds if not
            given, where all of them are on one machine (decision 44).
        counted: whether the roster's numbers of cases are those that are scored.
        remote: whether clients are on other machines: they are then told the round of every
            evaluation, which they check, and the digest of the model that they are to validate;
            and models that lie far from all others are noted (decision 45).

    Note:
        With a quorum below K the method goes on over those that answered (decisions 14 and 31);
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
    ) -> None:
        self.transport, self.seeds, self.exchange = transport, seeds, exchange
        self.secret = secret or seeds
        self._counted, self._remote = counted, remote
        self.sites: tuple[Site, ...] = tuple(sorted(transport.roster(), key=lambda site: site.name))
        self.names: tuple[str, ...] = tuple(site.name for site in self.sites)
        self._position = {name: k for k, name in enumerate(self.names)}
        self.training_over = False
        self._calls = Calls(transport, self.K, quorum or 0, exchange)
        self._sending = Sending(exchange.down)
        self._sharing = Sharing(self._calls, self._sending)
        self._steps = Steps(self._calls, self._sending, self._sharing)

    @property
    def K(self) -> int:
        return len(self.sites)

    @property
    def quorum(self) -> int:
        """The fewest clients that any call goes on with."""
        return self.exchange.least(self._calls.quorum, self.K)

    def rows(self, names: Sequence[str]) -> list[int]:
        """The positions of these clients in the fixed order."""
        return [self._position[name] for name in names]

    def local_train(self, t: int, w: Model | Bank, **how: Any) -> tuple[Bank, dict[str, float]]:
        """LocalTrain on every client, from the global w or, given a bank, each from its own row.

        Args:
            t: the round.
            w: the model to start from.
            **how: plain values for the clients: `T`, the last round; `mu`, FedProx's pull;
                `fresh`, to start from initial weights of its own instead of w; `rate` and
                `passes`, factors on the step size and the length; `weight_decay`.

        Returns:
            The bank of the w_k of those that answered, and their mean training losses.
        """
        rows = {name: model_for(w, name) for name in self.names}
        facts = {"t": t, **facts_of(w), **how}
        fresh = bool(how.get("fresh"))
        up: Encoding = "float32" if fresh and self.exchange.up == "difference" else self.exchange.up
        if up != "float32":
            facts["up"] = up
        if up == "difference" and isinstance(w, Bank):
            # Its rows may be where the clients put what they train.
            rows = {name: row.clone() for name, row in rows.items()}
        if isinstance(w, Model):
            self._sending.begin(w)
        uploads: dict[str, Mapping[str, Tensor]] = {}

        def read(name: str, answer: Message) -> tuple[Model, float]:
            model = trained_model(answer, rows[name], up)
            uploads[name] = answer.arrays
            return model, number(answer, "loss")

        def first(name: str) -> Message:
            return Message({}, facts) if fresh else self._sending.message(name, rows[name], facts)

        def mend(name: str, answer: Message) -> Message | None:
            return self._sending.whole(rows[name], facts) if lacks(answer) else None

        messages = {name: first(name) for name in self.names}
        answers = self._calls.ask(Ask("local_train", messages, read, t, mend=mend))
        if isinstance(w, Model):
            self._sending.arrived(answers, w)
        bank = Bank.gather({name: w_k for name, (w_k, _) in answers.items()})
        if self._remote and isinstance(w, Model):
            self._look_out(t, w, bank)
        passed_on = up == self.exchange.down == "difference" and isinstance(w, Model)
        self._sharing.came(bank, uploads if passed_on else {})
        return bank, {name: loss for name, (_, loss) in answers.items()}

    def _look_out(self, t: int, w: Model, w_k: Bank) -> None:
        """Notes whose training has gone much further than all others'."""
        far = {k: float(torch.linalg.vector_norm(w_k[k].values - w.values)) for k in w_k.sites}
        for name, middle in outliers(far, FAR).items():
            reason = f"its model has moved by {far[name]:.3g}, the others' by {middle:.3g}"
            self._calls.message("local_train", name, "outlying", reason, t)

    def as_sent(self, w: Model) -> Model:
        """A new global model as the clients will have it: w itself, but for lossy encodings."""
        return self._sending.settled(w)

    def share_models(self, t: int, w_k: Bank) -> None:
        """Sends every client the K-1 models it does not have.

        A repeated or retried request carries digests only, and then what is missing.
        """
        self._sharing.share(t, w_k)

    def update_beta(self, t: int, s: int, beta: Tensor, **how: Any) -> dict[str, Tensor]:
        """One step s on beta at every client that has the models.

        A client that has lost the models says so, is sent them again, and is asked once more.

        Returns:
            theta^{s,k}, the stepped parameters of beta (beta^{s,k} itself but for `softplus`).
        """
        return self._steps.update_beta(t, s, beta, how)

    def differentiate(
        self, t: int, s: int, w: Model, sites: Sequence[str], length: int, **how: Any
    ) -> dict[str, Tensor]:
        """The gradient at w of the loss of each of these clients' mini-batch of step s.

        Args:
            t: the round.
            s: the step of LearnAggWeight.
            w: where the loss is differentiated.
            sites: who is asked.
            length: D', the numbers of w that are trained.
            **how: plain values for the clients: `data`, the split; `mode`, the network's.

        Returns:
            grad L_k(w), (D',), of those that answered; good until the next call.
        """
        return self._steps.differentiate(t, s, w, sites, length, how)

    def clip(
        self, t: int, s: int, theta: Tensor, theta_k: Mapping[str, Tensor], most: float
    ) -> Mapping[str, Tensor]:
        """The clients' steps from theta, none far beyond the others' (decision 45).

        One that is more than `most` times as long as the median of the others' does not count,
        and is noted; 0 for no limit. One that is not finite never counts.
        """
        return self._steps.clip(t, s, theta, theta_k, most)

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

        Given a model for each of some clients, every one of them scores its own.

        Every client must answer for the test split, whatever the quorum, unless `test_quorum` says
        otherwise: a table has no holes that nobody asked for.

        Args:
            w: what is scored.
            split: the cases.
            metric: the score that every case must have; None where any will do.
            record: for the record of a round alone: nothing is chosen by it, so the test split is
                open, and the quorum is the usual one.
            t: the round that it belongs to; T for the final test.

        Raises:
            FederationError: the test split is asked for before training is over.
        """
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
            asked = {name: self._sending.message(name, w, facts) for name in self.names}
        elif isinstance(w, Mapping):
            asked = {k: Message(arrays_of(own), {**facts, **facts_of(own)}) for k, own in w.items()}
        else:
            asked = dict.fromkeys(self.names, Message(bag_of(w), {**facts, "sites": list(w.sites)}))

        def read(name: str, answer: Message) -> list[Score]:
            site = self.sites[self._position[name]]
            return scores_of(answer, site if self._counted else Site(name, {}), split, metric)

        def mend(_: str, answer: Message) -> Message | None:
            return self._sending.whole(w, facts) if isinstance(w, Model) and lacks(answer) else None

        final = split == "test" and not record
        needed = min(self.exchange.tested(self.K), len(asked)) if final else None
        answers = self._calls.ask(Ask("evaluate", asked, read, needed=needed, mend=mend))
        if isinstance(w, Model):
            self._sending.arrived(answers, w)
        return Scores(tuple(row for rows in answers.values() for row in rows))

    def validate_local(self, t: int, w_k: Bank, metric: str) -> dict[str, float]:
        """The mean validation score of its own w_k, of every client that trained in round t.

        A client that has lost its model since, or has another one, is sent it.
        """
        facts = {"t": t, "metric": metric}
        altered = self._sharing.altered

        def read(_: str, answer: Message) -> float:
            no_arrays(answer)
            return number(answer, "score")

        def whole(name: str) -> Message:
            return Message(arrays_of(w_k[name]), {**facts, **facts_of(w_k)})

        def mend(name: str, answer: Message) -> Message | None:
            if not lacks(answer):
                return None
            if answer.facts.get("altered") is True:
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

    def class_counts(self, t: int) -> dict[str, list[int] | None]:
        """Training cases per class of every client; None where a client does not know them."""
        asked = dict.fromkeys(self.names, Message({}, {"t": t}))
        return self._calls.ask(
            Ask("class_counts", asked, lambda name, answer: class_counts_of(answer), t)
        )

    def take_account(self) -> dict[str, Traffic]:
        """Calls, seconds and bytes per call since the last time this was asked."""
        return self._calls.take_account()

    def take_events(self) -> list[dict[str, Any]]:
        """Who was lost, dropped, asked or sent again, or came back, since this was last asked."""
        return self._calls.take_events()

    def take_learning_losses(self) -> dict[str, list[float | None]]:
        """Every site's loss in every message of LearnAggWeight since this was last asked."""
        return self._steps.take_losses(self.names)
