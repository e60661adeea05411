"""How a site scores models on its own cases."""

from __future__ import annotations

import torch

from autofedavg.core.bank import Bank, Model
from autofedavg.core.ensemble import Ensemble
from autofedavg.core.errors import DataError
from autofedavg.core.forms import form_of
from autofedavg.core.halves import half_of
from autofedavg.core.local_rules import rule_of
from autofedavg.core.problem import CaseScore, LocalData
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Facts
from autofedavg.core.trainer import LocalTrainer
from autofedavg.federation.client_state import ClientState, received
from autofedavg.federation.disclosure import disclosed
from autofedavg.federation.messages import Message, arrays_of, model_of

MISSING = Message({}, {"missing": True})


class ScoringClient:
    """The requests of a client that are about scores.

    Args:
        site: its name.
        data: its data.
        trainer: the resident network.
        client_state: what it remembers between requests.
    """

    seeds: Seeds

    def __init__(
        self, site: str, data: LocalData, trainer: LocalTrainer, client_state: ClientState
    ) -> None:
        self.site, self.data, self.trainer, self.client_state = site, data, trainer, client_state
        self._halves: dict[tuple[str, int], LocalData] = {}

    def evaluate(self, message: Message) -> Message:
        how = message.facts
        split, w = how["split"], self._asked(message)
        if w is None:
            return MISSING
        said = disclosed(self._score(w, split, how.get("half")), how.get("means"), self.site)
        if "personal" not in how:
            return Message({}, said)
        kept = self.client_state.kept.states.get(how["kept"])
        if kept is None or isinstance(w, Bank):
            return Message({}, {**said, "personal": None})
        rule = rule_of(how["personal"], f"client {self.site}, evaluate")
        predictor = rule.predictor(self.trainer.layout, w, kept)
        own: Facts = {"digest": self.client_state.kept.keep(arrays_of(predictor))}
        own |= disclosed(self._score(predictor, split), how.get("means"), self.site)
        return Message({}, {**said, "personal": own})

    def _asked(self, message: Message) -> Model | Bank | None:
        """The model that is to be scored; None where it is not here."""
        how = message.facts
        if members := how.get("sites"):
            form = form_of(how.get("form"))
            return Bank.gather({name: model_of(message.arrays, name, form) for name in members})
        if "kept" in how and "personal" not in how:  # a predictor of its own
            kept = self.client_state.kept.states.get(how["kept"])
            return None if kept is None or "values" not in kept else model_of(kept)
        return received(message, self.client_state, self.trainer.layout.dtype)

    def validate_local(self, message: Message) -> Message:
        own = self.client_state.own()
        if message.arrays:  # it was lost, and is sent again
            own = self.client_state.keep_own(
                model_of(message.arrays, form=form_of(message.facts.get("form")))
            )
        if own is None:
            return MISSING
        if not message.arrays and message.facts.get("digest") not in (None, own.digest()):
            return Message({}, {"missing": True, "altered": True})
        scores = self._score(own, "validation")
        metric = message.facts["metric"]
        values = [score.value for score in scores if score.metric == metric]
        if not values:
            raise DataError(
                f"no validation case has a score called {metric}", where=f"site {self.site}"
            )
        return Message({}, {"score": sum(values) / len(values)})

    def class_counts(self, message: Message) -> Message:
        count = getattr(self.data, "class_counts", None)
        counted = count() if count is not None else None
        return Message({}, {"classes": None if counted is None else [int(n) for n in counted]})

    def _cases(self, split: str, half: int | None) -> LocalData:
        """The data that a request is about: all of it, or with a half of a split alone."""
        if half is None:
            return self.data
        if (split, half) not in self._halves:
            only = getattr(self.data, "only", None)
            if only is None:
                raise DataError(
                    "this site's data cannot be divided into halves",
                    where=f"site {self.site}",
                    remedy="give the data a method only(split, picks)",
                )
            picks = half_of(self.seeds, self.site, self.data.cases().get(split, 0), half)
            self._halves[split, half] = only(split, picks)
        return self._halves[split, half]

    def _score(self, w: Model | Bank, split: str, half: int | None = None) -> list[CaseScore]:
        trainer = self.trainer.variant(w.form)
        network = trainer.network
        if isinstance(w, Model):
            trainer.load(w)
        else:
            here = Bank(w.sites, w.values.to(trainer.device), w.counters.to(trainer.device))
            network = Ensemble(
                network, [trainer.layout.state_dict(here[site]) for site in here.sites]
            )
        network.eval()
        with torch.no_grad():
            scores = self._cases(split, half).score(network, split)
        if not scores:
            raise DataError(f"no {split} case to score", where=f"site {self.site}")
        return scores
