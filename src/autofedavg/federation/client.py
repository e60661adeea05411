"""One institution, on any engine: it answers requests from its own data.

A reply is a function of the request, this site's data and the client's state; randomness comes from
(seed, site, purpose, round, step). So a request may be repeated, and a client that died and came
back gives the same reply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from autofedavg import algorithm
from autofedavg.core.bank import Model
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import constraint
from autofedavg.core.errors import AutoFedAvgError, DataError, TrainingError, error_facts
from autofedavg.core.forms import form_of
from autofedavg.core.local_rules import LocalWork, rule_of
from autofedavg.core.problem import LocalData
from autofedavg.core.seeds import Purpose, Seeds, every_state_kept, global_seed
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Batch, LocalTrainer
from autofedavg.federation.client_scoring import MISSING, ScoringClient
from autofedavg.federation.client_state import ClientState, received
from autofedavg.federation.encoding import opened, packed
from autofedavg.federation.local_training import (
    LocalTraining,
    reply_arrays,
    tell_of,
    vectors_of,
)
from autofedavg.federation.messages import Message, arrays_of, refuse_unknown
from autofedavg.federation.share_models import assembled


class Client(ScoringClient):
    """One institution.

    Args:
        site: its name.
        data: its data.
        trainer: the resident network; may be shared by the clients of one process.
        seeds: the run's random streams.
        client_state: what it remembers between requests.
    """

    def __init__(
        self,
        site: str,
        data: LocalData,
        trainer: LocalTrainer,
        seeds: Seeds,
        client_state: ClientState,
    ) -> None:
        super().__init__(site, data, trainer, client_state)
        self.seeds = seeds
        data.settle(trainer.device)

    def answer(self, verb: str, message: Message) -> Message:
        """Answers one request of the port."""
        refuse_unknown(self.site, verb, message.facts)
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
        )

    def train(self, job: LocalTraining) -> Message:
        """Carries out a local training."""

        def batches() -> Iterable[Batch]:
            return self.data.train_batches(self.seeds, job.t, job.training)

        work = LocalWork(
            job.start,
            batches,
            job.rate,
            job.vectors,
            self.client_state.kept.states.get(job.kept),
            lambda: self._seeded(Purpose.NETWORK, job.t),
        )
        with self._seeded(Purpose.NETWORK, job.t):
            trainer = self.trainer.variant(job.form, job.training)
            model, losses = algorithm.local_train(trainer, job.rule, work)
        return self.trained(job, model, losses, work)

    def trained(
        self, job: LocalTraining, model: Model, losses: Tensor, work: LocalWork | None = None
    ) -> Message:
        """Keeps the result of a local training, and replies with it."""
        loss = self._checked(losses, f"local_train, round {job.t}")
        facts = job.facts(loss, losses.numel())
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
        losses = []
        for s in range(1, int(how["batches"]) + 1):
            x = self._weight_batch(t, s, {"data": how["split"]})
            with self._seeded(Purpose.NETWORK, t, s):
                losses.append(self.trainer.loss(w, x))
        return self._checked(torch.stack(losses), f"probe of round {t}")

    def share_models(self, message: Message) -> Message:
        dtype = self.trainer.layout.dtype
        device = self.trainer.device
        return Message({}, assembled(message, self.site, self.client_state, dtype, device))

    def update_beta(self, message: Message) -> Message:
        """The steps of one message, from step s on: one, as in Algorithm 1, or several.

        Between several steps beta is this client's own, kept legal by gamma (decision 33).
        """
        how, beta = message.facts, message.arrays["beta"]
        t, first = int(how["t"]), int(how["s"])
        bank = self.client_state.bank(how["digest"])
        if bank is None:
            return MISSING
        gamma, losses = constraint(how["gamma"]), []
        several = "steps" in how
        step = (BetaOptimiser(**how["optimiser"]) if several else BetaOptimiser("sgd", 1.0)).start()
        for s in range(first, first + how.get("steps", 1)):
            seed = self.seeds.number(self.site, Purpose.ALPHA, t, s)
            x = self._weight_batch(t, s, how)
            with self._seeded(Purpose.NETWORK, t, s):
                found, loss = algorithm.update_beta(self.trainer, bank, beta, x, how, seed)
            losses.append(self._checked(loss.reshape(1), f"update_beta, round {t}", s))
            theta = step(gamma.free(beta), found)
            beta = gamma.beta(theta)
        return Message({"theta": theta}, {"loss": sum(losses) / len(losses)})

    def weighed(self, theta: Tensor, loss: float, how: Facts) -> Message:
        """The reply to one step on beta that was taken together with other clients'."""
        if not math.isfinite(loss):
            self._checked(torch.tensor([loss]), f"update_beta, round {how['t']}", int(how["s"]))
        return Message({"theta": theta}, {"loss": loss})

    def differentiate(self, message: Message) -> Message:
        how = message.facts
        t, s = int(how["t"]), int(how["s"])
        w = received(message, self.client_state, self.trainer.layout.dtype)
        if w is None:
            return MISSING
        if not self.trainer.layout.holds(w):
            raise TrainingError(
                f"was sent {w.values.numel()} numbers of {w.values.dtype}, not its network's",
                where=f"client {self.site}, differentiate, round {t}, step {s}",
                remedy="give every site the same study",
            )
        x = self._weight_batch(t, s, how)
        with self._seeded(Purpose.NETWORK, t, s):
            gradient, loss = self.trainer.differentiate(w, x, how["mode"])
        value = self._checked(loss.reshape(1), f"differentiate, round {t}", s)
        return Message({"gradient": gradient.clone()}, {"loss": value})

    def _weight_batch(self, t: int, s: int, how: Facts) -> Batch:
        size = self.trainer.training.batch_size
        data = self._cases(how["data"], how.get("half"))
        return data.weight_batch(self.seeds, t, s, how["data"], size)

    def _seeded(self, purpose: Purpose, t: int, s: int = 0) -> AbstractContextManager[None]:
        """For what takes no generator, such as dropout."""
        return global_seed(self.seeds.number(self.site, purpose, t, s), self.trainer.device)

    def _checked(self, losses: Tensor, place: str, first: int = 1) -> float:
        """The mean loss; refuses losses that are not finite, naming the first such step."""
        steps = losses.numel()
        if not steps:
            raise DataError(
                "there was no batch to train on",
                where=f"client {self.site}, {place}",
                remedy="give this site training cases",
            )
        mean = float(losses if steps == 1 else losses.mean())
        if not math.isfinite(mean):
            bad = (~torch.isfinite(losses)).nonzero()
            step = int(bad[0]) + 1 if len(bad) else steps
            raise TrainingError(
                f"the loss is {float(losses[step - 1])}",
                where=f"client {self.site}, {place}, step {first + step - 1}",
                remedy="lower training.learning_rate, or look at this site's images and labels",
            )
        return mean


class ClientGroup:
    """Clients of one process, which answer one after another; an error is a reply too."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients

    @property
    def names(self) -> list[str]:
        return list(self._clients)

    def answer(self, verb: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        with every_state_kept():  # once for all of them: it costs as much as seeding does
            return {name: self._answer(name, verb, message) for name, message in messages.items()}

    def _answer(self, name: str, verb: str, message: Message) -> Message:
        try:
            return self._clients[name].answer(verb, message)
        except AutoFedAvgError as error:
            return Message({}, error_facts(error))
