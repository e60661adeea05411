"""The port: all that a server may ask of K clients, over any engine.

Eight members (`sites`, `local_train`, `share_models`, `update_beta`, `differentiate`, `evaluate`,
`validate_local`, `class_counts`) are written once over a thin transport, the `Fleet`. An engine
supplies only `roster` and `ask`. Bytes and seconds are counted here, and answers are checked here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autofedavg.averaging import Bank, Model, model_for
from autofedavg.errors import FederationError
from autofedavg.notes import (
    Fleet,
    Lost,
    Note,
    Score,
    Scores,
    Site,
    Traffic,
    arrays_of,
    bag_of,
    facts_of,
    model_of,
    total_bytes,
)
from autofedavg.seeds import Seeds


class Federation:
    """K clients in a fixed order, by site name.

    Args:
        fleet: the engine's transport.
        quorum: how many clients must answer a call; None or 0 for all of them.
        within: seconds a call may take; no limit by default.
        seeds: the run's random streams, for what the server itself draws.

    Note:
        With a quorum below K the method goes on over those that answered (architecture, part 4);
        full participation is exactly Algorithm 1.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        quorum: int | None = None,
        within: float | None = None,
        seeds: Seeds = Seeds(0),  # noqa: B008 - frozen
    ) -> None:
        self.fleet, self.seeds = fleet, seeds
        self.sites: tuple[Site, ...] = tuple(sorted(fleet.roster(), key=lambda site: site.name))
        self.names: tuple[str, ...] = tuple(site.name for site in self.sites)
        self._position = {name: k for k, name in enumerate(self.names)}
        self.quorum = quorum or len(self.sites)
        self.within = within
        self.training_over = False
        self._shared: tuple[str, Bank] | None = None
        self._account: dict[str, Traffic] = {}

    @property
    def K(self) -> int:
        return len(self.sites)

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
        answers = self._ask(
            "local_train",
            t,
            {k: Note({} if fresh else arrays_of(w_k), facts) for k, w_k in rows.items()},
        )
        like = rows[self.names[0]]
        for name, answer in answers.items():
            self._check_model(name, t, answer, like)
        bank = Bank.gather(
            {name: model_of(answer.arrays, form=w.form) for name, answer in answers.items()}
        )
        self._check_finite(t, bank)
        return bank, self._numbers("local_train", t, answers, "loss")

    def share_models(self, t: int, w_k: Bank) -> None:
        """Sends every client the K-1 models it does not have."""
        self._shared = (w_k.digest(), w_k)
        self._ask("share_models", t, {name: self._bag(t, name) for name in w_k.sites})

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
        answers = dict(self._ask("update_beta", t, dict.fromkeys(bank.sites, note)))
        forgetful = [name for name, answer in answers.items() if answer.facts.get("missing")]
        if forgetful:
            answers = {k: a for k, a in answers.items() if k not in forgetful}
            needed = max(0, min(self.quorum, len(bank.sites)) - len(answers))
            whole = {name: self._bag(t, name, whole=True) for name in forgetful}
            back = self._ask("share_models", t, whole, needed)
            answers |= self._ask("update_beta", t, dict.fromkeys(back, note), needed)
        stepped = {}
        for name in (name for name in bank.sites if name in answers):
            if set(answers[name].arrays) != {"theta"}:
                raise FederationError(
                    f"answered step {s} with {sorted(answers[name].arrays)} instead of theta",
                    client=name,
                    call="update_beta",
                    round=t,
                    remedy="give every site the same version",
                )
            theta = stepped[name] = answers[name].arrays["theta"]
            if theta.shape != beta.shape or not bool(torch.isfinite(theta).all()):
                raise FederationError(
                    f"its beta for step {s} has a wrong shape or is not finite",
                    client=name,
                    call="update_beta",
                    round=t,
                    remedy="lower method.beta_rate, or look at this site's images",
                )
        return stepped

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
        answers = self._ask("differentiate", t, dict.fromkeys(sites, note))
        for name, answer in answers.items():
            gradient = answer.arrays.get("gradient")
            if (
                gradient is None
                or len(answer.arrays) > 1
                or (gradient.shape, gradient.dtype) != ((length,), w.values.dtype)
                or not bool(torch.isfinite(gradient).all())
            ):
                raise FederationError(
                    f"its gradient for step {s} is not {length} finite numbers of {w.values.dtype}",
                    client=name,
                    call="differentiate",
                    round=t,
                    remedy="give every site the same study, or look at this site's images",
                )
        return {name: answer.arrays["gradient"] for name, answer in answers.items()}

    def evaluate(self, w: Model | Bank, split: str) -> Scores:
        """Scores one model, or a bank as one ensemble, on every client's cases of a split.

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
        answers = self._ask("evaluate", None, dict.fromkeys(self.names, note))
        rows = []
        for name, answer in answers.items():
            if "scores" not in answer.facts:
                raise FederationError("sent no scores", client=name, call="evaluate")
            for case, metric, value in answer.facts["scores"]:
                if not math.isfinite(value):
                    raise FederationError(
                        f"{metric} of case {case} is {value}", client=name, call="evaluate"
                    )
                rows.append(Score(name, case, metric, value))
        return Scores(tuple(rows))

    def validate_local(self, t: int, w_k: Bank, metric: str) -> dict[str, float]:
        """The mean validation score of its own w_k, of every client that trained in round t."""
        note = Note({}, {"t": t, "metric": metric})
        answers = self._ask("validate_local", t, dict.fromkeys(w_k.sites, note))
        return self._numbers("validate_local", t, answers, "score")

    def class_counts(self, t: int) -> dict[str, list[int] | None]:
        """Training cases per class of every client; None where a client does not know them."""
        answers = self._ask("class_counts", t, dict.fromkeys(self.names, Note({}, {"t": t})))
        told = {name: answer.facts.get("classes") for name, answer in answers.items()}
        for name, counts in told.items():
            if counts is not None and not all(isinstance(n, int) and n >= 0 for n in counts):
                raise FederationError(
                    f"its class counts are {counts}", client=name, call="class_counts", round=t
                )
        return told

    def take_account(self) -> dict[str, Traffic]:
        """Calls, seconds and bytes per call since the last time this was asked."""
        taken, self._account = self._account, {}
        return taken

    def _ask(
        self,
        call: str,
        t: int | None,
        notes: Mapping[str, Note],
        quorum: int | None = None,
    ) -> dict[str, Note]:
        started = time.perf_counter()
        answers = self.fleet.ask(call, notes, self.within)
        cost = self._account.setdefault(call, Traffic())
        cost.calls += 1
        cost.seconds += time.perf_counter() - started
        cost.down += total_bytes(notes.values())
        given: dict[str, Note] = {}
        for name in notes:
            answer = answers.get(name)
            if isinstance(answer, Note):
                given[name] = answer
        cost.up += total_bytes(given.values())
        needed = min(self.quorum, len(notes)) if quorum is None else quorum
        if len(given) < needed:
            lost = next(name for name in notes if name not in given)
            missing = answers.get(lost)
            reason = missing.reason if isinstance(missing, Lost) else "no answer"
            raise FederationError(
                f"did not answer ({reason}); {len(given)} of {len(notes)} answered, "
                f"{needed} needed",
                client=lost,
                call=call,
                round=t,
                remedy="mend the client and resume the run",
            )
        return given

    def _numbers(
        self, call: str, t: int, answers: Mapping[str, Note], fact: str
    ) -> dict[str, float]:
        found = {name: float(answer.facts.get(fact, math.nan)) for name, answer in answers.items()}
        for name, value in found.items():
            if not math.isfinite(value):
                raise FederationError(f"its {fact} is {value}", client=name, call=call, round=t)
        return found

    def _bag(self, t: int, name: str, *, whole: bool = False) -> Note:
        """The models client `name` needs: the others', or all of them."""
        assert self._shared is not None  # noqa: S101 - both callers set or checked it
        digest, bank = self._shared
        arrays = bag_of(bank, without=None if whole else name)
        return Note(arrays, {"t": t, "sites": list(bank.sites), "digest": digest})

    def _check_model(self, name: str, t: int, answer: Note, like: Model) -> None:
        expected = {k: (a.shape, a.dtype) for k, a in arrays_of(like).items()}
        found = {k: (a.shape, a.dtype) for k, a in answer.arrays.items()}
        if expected != found:
            raise FederationError(
                f"its model does not fit the network: {found} instead of {expected}",
                client=name,
                call="local_train",
                round=t,
                remedy="give every site the same study",
            )

    def _check_finite(self, t: int, bank: Bank) -> None:
        good = torch.isfinite(bank.values.sum(dim=1)).tolist()
        for name, fine in zip(bank.sites, good, strict=True):
            if not fine:
                raise FederationError(
                    "its trained model holds numbers that are not finite",
                    client=name,
                    call="local_train",
                    round=t,
                    remedy="lower training.learning_rate, or look at this site's images",
                )
