"""The port: all that a server may ask of K clients, over any engine.

Eight members (`sites`, `local_train`, `share_models`, `update_beta`, `differentiate`, `evaluate`,
`validate_local`, `class_counts`) are written once over a thin transport, the `Fleet`. An engine
supplies only `roster` and `ask`. What all calls have in common is in `calls`; what an answer must
be is in `answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autofedavg.answers import (
    BadAnswer,
    class_counts_of,
    gradient_of,
    no_arrays,
    number,
    scores_of,
    theta_of,
)
from autofedavg.averaging import Bank, Model, model_for
from autofedavg.calls import Ask, Calls
from autofedavg.errors import FederationError
from autofedavg.exchange import Exchange
from autofedavg.notes import (
    Fleet,
    Note,
    Scores,
    Site,
    Traffic,
    arrays_of,
    bag_of,
    facts_of,
    model_of,
)
from autofedavg.seeds import Seeds


class Federation:
    """K clients in a fixed order, by site name.

    Args:
        fleet: the engine's transport.
        quorum: how many clients must answer a call; None or 0 for all of them.
        exchange: time limits, quorums of single calls, retries, bad answers, encodings.
        seeds: the run's random streams, for what the server itself draws.

    Note:
        With a quorum below K the method goes on over those that answered (decisions 14 and 31);
        full participation is exactly Algorithm 1.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        quorum: int | None = None,
        exchange: Exchange = Exchange(),  # noqa: B008 - frozen
        seeds: Seeds = Seeds(0),  # noqa: B008 - frozen
    ) -> None:
        self.fleet, self.seeds, self.exchange = fleet, seeds, exchange
        self.sites: tuple[Site, ...] = tuple(sorted(fleet.roster(), key=lambda site: site.name))
        self.names: tuple[str, ...] = tuple(site.name for site in self.sites)
        self._position = {name: k for k, name in enumerate(self.names)}
        self.training_over = False
        self._calls = Calls(fleet, self.K, quorum or 0, exchange)
        self._shared: tuple[str, Bank] | None = None

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
        notes = {k: Note({} if fresh else arrays_of(w_k), facts) for k, w_k in rows.items()}
        like = rows[self.names[0]]

        def read(_: str, answer: Note) -> tuple[Model, float]:
            return trained_model(answer, like), number(answer, "loss")

        answers = self._calls.ask(Ask("local_train", notes, read, t))
        bank = Bank.gather({name: w_k for name, (w_k, _) in answers.items()})
        return bank, {name: loss for name, (_, loss) in answers.items()}

    def share_models(self, t: int, w_k: Bank) -> None:
        """Sends every client the K-1 models it does not have."""
        self._shared = (w_k.digest(), w_k)
        notes = {name: self._bag(t, name) for name in w_k.sites}
        self._calls.ask(Ask("share_models", notes, _nothing, t))

    def update_beta(self, t: int, s: int, beta: Tensor, **how: Any) -> dict[str, Tensor]:
        """One step s on beta at every client that has the models.

        A client that has lost the models says so, is sent them again, and is asked once more.

        Returns:
            theta^{s,k}, the stepped parameters of beta (beta^{s,k} itself but for `softplus`).
        """
        if self._shared is None:
            raise FederationError(
                "no models have been shared yet",
                client="all",
                call="update_beta",
                round=t,
                remedy="call share_models first",
            )
        digest, bank = self._shared
        note = Note({"beta": beta}, {"t": t, "s": s, "digest": digest, **how})
        forgetful: list[str] = []

        def read(name: str, answer: Note) -> Tensor | None:
            if answer.facts.get("missing") is not True:
                return theta_of(answer, beta, s)
            if name in forgetful:
                raise BadAnswer("cannot keep the models it is sent")
            forgetful.append(name)
            return None

        asked = dict.fromkeys(bank.sites, note)
        stepped = self._calls.ask(Ask("update_beta", asked, read, t, s))
        if forgetful:
            there = len(stepped) - len(forgetful)
            needed = max(0, self._calls.needed("update_beta", len(asked)) - there)
            whole = {name: self._bag(t, name, whole=True) for name in forgetful}
            back = self._calls.ask(Ask("share_models", whole, _nothing, t, s, needed))
            asked = dict.fromkeys(back, note)
            stepped |= self._calls.ask(Ask("update_beta", asked, read, t, s, needed))
        return {name: theta for name, theta in stepped.items() if theta is not None}

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
        note = Note(arrays_of(w), {"t": t, "s": s, **how})

        def read(_: str, answer: Note) -> Tensor:
            return gradient_of(answer, length, w.values.dtype, s)

        return self._calls.ask(Ask("differentiate", dict.fromkeys(sites, note), read, t, s))

    def evaluate(self, w: Model | Bank, split: str) -> Scores:
        """Scores one model, or a bank as one ensemble, on every client's cases of a split.

        Every client must answer for the test split, whatever the quorum: a table has no holes.

        Raises:
            FederationError: the test split is asked for before training is over.
        """
        if split == "test" and not self.training_over:
            raise FederationError(
                "the test cases stay closed until training is over",
                client="all",
                call="evaluate",
                remedy="use the validation split to choose a model",
            )
        facts = {"split": split, **facts_of(w)}
        if isinstance(w, Model):
            note = Note(arrays_of(w), facts)
        else:
            note = Note(bag_of(w), {**facts, "sites": list(w.sites)})
        needed = self.K if split == "test" else None
        asked = dict.fromkeys(self.names, note)
        answers = self._calls.ask(
            Ask("evaluate", asked, lambda name, answer: scores_of(answer, name), needed=needed)
        )
        return Scores(tuple(row for rows in answers.values() for row in rows))

    def validate_local(self, t: int, w_k: Bank, metric: str) -> dict[str, float]:
        """The mean validation score of its own w_k, of every client that trained in round t.

        A client that has lost its model since is sent it.
        """
        facts = {"t": t, "metric": metric}

        def read(_: str, answer: Note) -> float:
            no_arrays(answer)
            return number(answer, "score")

        def mend(name: str, answer: Note) -> Note | None:
            if answer.facts.get("missing") is not True:
                return None
            return Note(arrays_of(w_k[name]), {**facts, **facts_of(w_k)})

        asked = dict.fromkeys(w_k.sites, Note({}, facts))
        return self._calls.ask(Ask("validate_local", asked, read, t, mend=mend))

    def class_counts(self, t: int) -> dict[str, list[int] | None]:
        """Training cases per class of every client; None where a client does not know them."""
        asked = dict.fromkeys(self.names, Note({}, {"t": t}))
        return self._calls.ask(
            Ask("class_counts", asked, lambda name, answer: class_counts_of(answer), t)
        )

    def take_account(self) -> dict[str, Traffic]:
        """Calls, seconds and bytes per call since the last time this was asked."""
        return self._calls.take_account()

    def take_events(self) -> list[dict[str, Any]]:
        """Who was lost, dropped, asked or sent again, or came back, since this was last asked."""
        return self._calls.take_events()

    def _bag(self, t: int, name: str, *, whole: bool = False) -> Note:
        """The models client `name` needs: the others', or all of them."""
        assert self._shared is not None  # noqa: S101 - both callers set or checked it
        digest, bank = self._shared
        arrays = bag_of(bank, without=None if whole else name)
        return Note(arrays, {"t": t, "sites": list(bank.sites), "digest": digest})


def trained_model(answer: Note, like: Model) -> Model:
    """The model a client has trained: shapes and types of the one it started from, all finite."""
    expected = {k: (a.shape, a.dtype) for k, a in arrays_of(like).items()}
    found = {k: (a.shape, a.dtype) for k, a in answer.arrays.items()}
    if expected != found:
        raise BadAnswer(
            f"its model does not fit the network: {found} instead of {expected}",
            "give every site the same study",
        )
    model = model_of(answer.arrays, form=like.form)
    if not bool(torch.isfinite(model.values.sum())):
        raise BadAnswer(
            "its trained model holds numbers that are not finite",
            "lower training.learning_rate, or look at this site's images",
        )
    return model


def _nothing(name: str, answer: Note) -> None:
    """There is nothing to read in the answer."""
