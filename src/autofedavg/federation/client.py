"""One institution, on any engine: it answers requests from its own data.

A reply is a function of the request, this site's data and the client's state; randomness comes from
(seed, site, purpose, round, step). So a request may be repeated, and a client that died and came
back gives the same reply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from autofedavg import algorithm
from autofedavg.core.bank import Model
from autofedavg.core.errors import AutoFedAvgError, error_facts
from autofedavg.core.forms import form_of
from autofedavg.core.local_rules import LocalWork, rule_of
from autofedavg.core.seeds import Purpose, every_state_kept, global_seed
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Batch
from autofedavg.federation import loss_calls
from autofedavg.federation.client_learning import LearningClient
from autofedavg.federation.client_scoring import MISSING
from autofedavg.federation.client_state import received
from autofedavg.federation.encoding import opened, packed
from autofedavg.federation.local_training import (
    LocalTraining,
    reply_arrays,
    tell_of,
    vectors_of,
)
from autofedavg.federation.messages import Message, arrays_of, refuse_unknown
from autofedavg.federation.private_steps import Release


class Client(LearningClient):
    """One institution; `LearningClient` says what it is made of."""

    def answer(self, verb: str, message: Message) -> Message:
        """Answers one request of the port."""
        refuse_unknown(self.site, verb, message.facts)
        if self.private:
            self.private.refuse(verb, message.facts)
        with every_state_kept():  # what a network draws itself is the run's on every engine
            reply: Message = getattr(self, verb)(message)
        return reply

    def local_train(self, message: Message) -> Message:
        job = self.training_of(message)
        return job if isinstance(job, Message) else self.train(job)

    def training_of(self, message: Message) -> LocalTraining | Message:
        """The local training that a request asks for, or the reply where it cannot be done."""
        how = message.facts
        form = form_of(how.get("form"))
        training = self.trainer.training
        if "rate" in how or "passes" in how or "weight_decay" in how:
            training = training.changed(
                how.get("rate", 1.0), how.get("passes", 1), how.get("weight_decay")
            )
        if how.get("fresh"):
            with global_seed(self.seeds.number(self.site, Purpose.INIT)):
                start = self.trainer.variant(form, training).drawn()
        else:
            sent = received(message, self.client_state, self.trainer.layout.dtype)
            if sent is None:
                return MISSING
            start = sent
        t = int(how["t"])
        place = f"client {self.site}, local_train, round {t}"
        rule = rule_of(how.get("rule"), place)
        if how.get("kept") and how["kept"] not in self.client_state.kept.states:
            return Message({}, {"missing": True, "kept": True})
        blind = self.blind.training(message, start, t) if "blind" in how else None
        if isinstance(blind, Message):
            return blind
        return LocalTraining(
            t,
            start,
            training,
            training.rate(t, int(how["T"])),
            rule,
            vectors_of(message, rule, self.trainer.layout, place),
            form,
            how.get("up", "float32"),
            {"probe": self._probed(t, start, how["probe"])} if "probe" in how else {},
            tell_of(how, place),
            how.get("kept", ""),
            tuple(how.get("hold", ())),
            blind,
        )

    def train(self, job: LocalTraining) -> Message:
        """Carries out a local training."""
        paid = self.private.training(job) if self.private else None

        def batches() -> Iterable[Batch]:
            if paid:
                return paid.batches()
            return self.data.train_batches(self.seeds, job.t, job.training)

        work = LocalWork(
            job.start,
            batches,
            job.rate,
            job.vectors,
            self.client_state.kept.states.get(job.kept),
            lambda: self.seeded(Purpose.NETWORK, job.t),
        )
        with self.seeded(Purpose.NETWORK, job.t):
            trainer = self.trainer.variant(job.form, job.training)
            model, losses = algorithm.local_train(trainer, job.rule, work)
        if paid:
            paid.refuse_statistics(job.start, model, trainer.layout.trainable)
        return self.trained(job, model, losses, work, paid)

    def trained(
        self,
        job: LocalTraining,
        model: Model,
        losses: Tensor,
        work: LocalWork | None = None,
        paid: Release | None = None,
    ) -> Message:
        """Keeps the result of a local training, and replies with it."""
        loss = math.nan if paid else self.checked(losses, f"local_train, round {job.t}")
        if job.blind:
            seen = (0.0, paid.price) if paid else (loss, {})
            reply = self.blind.trained(job.blind, job.start, model, job.t, *seen)
            self.client_state.kept.hold({job.kept, reply.facts["kept"]})
            return reply
        facts = job.facts(loss, losses.numel()) | (paid.facts if paid else {})
        model = replace(model, form=job.form) if job.form else model
        if job.up == "float32":
            arrays = arrays_of(self.client_state.keep_own(model))
        else:
            arrays = packed(model, job.up, job.start)
            # What it keeps is what the server has of it.
            self.client_state.keep_own(
                opened(arrays, job.up, model.values.dtype, job.start, job.form)
            )
        if work and work.keep:
            facts["kept"] = self.client_state.kept.keep(work.keep)
            self.client_state.kept.hold({job.kept, facts["kept"], *job.hold})
        return Message(reply_arrays(arrays, work) if work else arrays, facts)

    def export_state(self, message: Message) -> Message:
        """In a simulation: copies of what stays at this site."""
        return self.client_state.kept.message(message.facts["digests"])

    def import_state(self, message: Message) -> Message:
        """In a simulation that is resumed: what this site had kept."""
        self.client_state.kept.read(message)
        return Message()

    def _probed(self, t: int, w: Model, how: Facts) -> float:
        """The mean loss of a model on mini-batches of a split."""
        steps = range(1, int(how["batches"]) + 1)
        losses = loss_calls.batch_losses(self, w, t, steps, how["split"])
        return self.checked(losses, f"probe of round {t}")


class ClientGroup:
    """Clients of one process, which answer one after another; an error is a reply too."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients

    @property
    def names(self) -> list[str]:
        return list(self._clients)

    def answer(self, verb: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        answers: dict[str, Message] = {}
        with every_state_kept():  # once for all of them: it costs as much as seeding does
            for name, message in messages.items():
                with error_as_reply(answers, name):
                    answers[name] = self._clients[name].answer(verb, message)
        return answers

    def trainings(
        self, messages: Mapping[str, Message], answers: dict[str, Message]
    ) -> dict[str, LocalTraining]:
        """The local trainings that clients are asked for; one that cannot be done is answered."""
        found: dict[str, LocalTraining] = {}
        for name, message in messages.items():
            with error_as_reply(answers, name):
                job = self._clients[name].training_of(message)
                if isinstance(job, Message):
                    answers[name] = job
                else:
                    found[name] = job
        return found


@contextmanager
def error_as_reply(answers: dict[str, Message], name: str) -> Iterator[None]:
    """Makes an error the reply of one client; the others go on."""
    try:
        yield
    except AutoFedAvgError as error:
        answers[name] = Message({}, error_facts(error))
