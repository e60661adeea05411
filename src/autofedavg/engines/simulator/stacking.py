"""The simulator's clients on one GPU, taking their training steps together."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.constraints import constraint
from autofedavg.core.errors import ConfigError
from autofedavg.core.forms import Form
from autofedavg.core.layout import no_counters
from autofedavg.core.local_rules import Plain, Prox
from autofedavg.core.seeds import Purpose
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.overlapping import OverlappedGroup, why_not_overlapped
from autofedavg.engines.simulator.stackable import layers_in, pictures_of, why_not_together
from autofedavg.engines.simulator.stacked.layers import fits
from autofedavg.engines.simulator.stacked.samples import Samples
from autofedavg.engines.simulator.stacked.schedule import slots_for
from autofedavg.federation.client import Client, ClientGroup, error_as_reply
from autofedavg.federation.local_training import LocalTraining
from autofedavg.federation.messages import Message
from autofedavg.tasks.cifar.pictures import BatchPlan

if TYPE_CHECKING:
    from autofedavg.engines.simulator.stacked.stack import Pictures, Stack

log = logging.getLogger(__name__)

MOST_SLOTS = 16  # more fill the GPU no better, and each wants 60 MB

SAMPLED = ("softmax", "dirichlet")  # constraints that `stacked.samples` knows
# The values of a request that the stack acts on. One with others goes to the clients themselves:
# what the stack does not know it would leave out.
TOGETHER: Mapping[str, set[str]] = {
    "local_train": {
        "t", "T", "rule", "tell", "probe", "fresh", "rate", "passes", "weight_decay", "form",
        "sent", "up", "kept", "hold", "blind", "sum", "undo",
    },
    "update_beta": {"t", "s", "digest", "gamma", "layers", "rate", "smoothing", "mode", "data"},
}  # fmt: skip


def group_of(clients: Mapping[str, Client], beside: int = 1) -> ClientGroup:
    """A group whose clients are stacked where network, data and training allow it.

    Args:
        clients: of one process.
        beside: how many may take their steps side by side on a GPU, where they are not stacked.

    Raises:
        ConfigError: several are to, and cannot.
    """
    some = next(iter(clients.values()))
    if some.trainer.device.type != "cuda":
        return ClientGroup(clients)
    if len(clients) == 1:
        if beside > 1:
            raise _no_effect(beside, "there is one site")
        return ClientGroup(clients)
    reason = why_not_together(clients)
    if not reason:
        if beside > 1:
            raise _no_effect(beside, "on this GPU they take their steps as one")
        return StackedGroup(clients)
    if beside == 1:
        log.info("clients take their steps one after another: %s", reason)
        return ClientGroup(clients)
    if alone := why_not_overlapped(clients):
        raise _no_effect(beside, alone)
    log.info("at most %d clients take their steps side by side, not as one: %s", beside, reason)
    return OverlappedGroup(clients, beside)


def _no_effect(beside: int, why: str) -> ConfigError:
    return ConfigError(
        f"{beside} sites cannot train side by side: {why}",
        where="workers",
        remedy="leave --workers out",
    )


class Draw(NamedTuple):
    """A batch, and what a sample of alpha is drawn with: once."""

    batch: BatchPlan
    chance: torch.Generator


class StackedGroup(ClientGroup):
    """Clients that train and weigh together; whatever else is asked, they answer one by one."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        super().__init__(clients)
        self._number = {name: k for k, name in enumerate(clients)}
        self._made: Stack | None = None
        self._form: Form | None = None  # of the networks in it
        self._shown: Pictures | None = None
        self._ahead: dict[tuple[str, int, Training], BatchPlan] = {}
        self._drawn: dict[tuple[str, int, int, str], Draw] = {}
        self._said: set[str] = set()  # why requests could not be stacked

    def answer(self, verb: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        known = all(
            message.facts.keys() <= TOGETHER.get(verb, set()) for message in messages.values()
        )
        if verb == "update_beta" and known and self._alike(messages):
            return self._weigh(messages)
        if verb == "local_train" and known:
            return self._train_all(messages)
        if verb == "local_train":
            self._say("as a request asks for more than the stack")
        return super().answer(verb, messages)

    def _train_all(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Carries out local trainings: those that differ only in models and data, together."""
        answers: dict[str, Message] = {}
        alike: dict[tuple[Any, ...], dict[str, LocalTraining]] = {}
        for name, job in self.trainings(messages, answers).items():
            alike.setdefault((job.rate, job.rule, job.training, job.form), {})[name] = job
        for jobs in alike.values():
            if self._fits(jobs):
                self._train(jobs, answers)
                continue
            for name, job in jobs.items():
                with error_as_reply(answers, name):
                    answers[name] = self._clients[name].train(job)
        return {name: answers[name] for name in messages}

    def _say(self, why: str) -> None:
        if why not in self._said:
            log.info("clients take their steps one after another %s", why)
            self._said.add(why)

    def _fits(self, jobs: Mapping[str, LocalTraining]) -> bool:
        """Whether clients can train together by this rule, with the network in this form."""
        (name, job), *_ = jobs.items()
        if type(job.rule) not in (Plain, Prox):
            self._say(f"by the local rule {job.rule.name!r}")
            return False
        if job.form is None or (self._made is not None and job.form == self._form):
            return True
        layers = layers_in(self._clients[name], job.form)
        return layers is not None and fits(layers, job.training.batch_size)

    def _train(self, jobs: Mapping[str, LocalTraining], answers: dict[str, Message]) -> None:
        some = next(iter(jobs.values()))
        stack = self._stack(some.form)
        work, seeds = {}, {}
        for name, job in jobs.items():
            k, client = self._number[name], self._clients[name]
            stack.put(k, job.start.values)
            work[k] = self._steps(name, job.t, job.training)
            seeds[k] = client.seeds.number(name, Purpose.NETWORK, job.t)
        mu = some.rule.mu if isinstance(some.rule, Prox) else 0.0
        how = (some.rate, some.training.momentum, some.training.weight_decay, mu)
        losses = stack.train(work, seeds, how)
        # The GPU has all it needs: while it works, the next round's batches are drawn.
        kept = {key: steps for key, steps in self._ahead.items() if key[1] > some.t}
        self._ahead = kept | {
            (name, job.t + 1, job.training): self._steps(name, job.t + 1, job.training)
            for name, job in jobs.items()
        }
        for name, job in jobs.items():
            k = self._number[name]
            model = Model(stack.model(k), no_counters(stack.device))
            with error_as_reply(answers, name):
                answers[name] = self._clients[name].trained(job, model, losses[k])

    def _alike(self, messages: Mapping[str, Message]) -> bool:
        """Whether all take one step from the same beta and models, without dropout."""
        some, *others = messages.values()
        how, beta = some.facts, some.arrays["beta"]
        if how["gamma"]["name"] not in SAMPLED:
            self._say(f"on beta with the constraint {how['gamma']['name']!r}")
            return False
        client_states = (self._clients[name].client_state for name in messages)
        return (
            how["mode"] == "eval"
            and all(
                message is some
                or (message.facts == how and torch.equal(beta, message.arrays["beta"]))
                for message in others
            )
            and all(client_state.bank(how["digest"]) is not None for client_state in client_states)
        )

    def _weigh(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """One step on beta for every client, each at its own sample of alpha."""
        how = next(iter(messages.values())).facts
        t, s, split = int(how["t"]), int(how["s"]), how["data"]
        answers: dict[str, Message] = {}
        work: dict[str, Draw] = {}
        for name in messages:
            with error_as_reply(answers, name):
                ready = self._drawn.pop((name, t, s, split), None)
                work[name] = ready or self._draw(name, t, s, split)
        if work:
            thetas, losses = self._weighed(work, next(iter(messages.values())))
            for name, theta, loss in zip(work, thetas.unbind(), losses, strict=True):
                with error_as_reply(answers, name):
                    answers[name] = self._clients[name].weighed(theta, loss, how)
        return {name: answers[name] for name in messages}

    def _weighed(self, work: Mapping[str, Draw], message: Message) -> tuple[Tensor, list[float]]:
        """Theta, and the loss, of every client that has a batch."""
        stack, how, some = self._stack(None), message.facts, self._clients[next(iter(work))]
        t, s = int(how["t"]), int(how["s"])
        layers = some.trainer.layout.layers(how["layers"]) if how["layers"] else None
        chances = [draw.chance for draw in work.values()]
        samples = Samples(message.arrays["beta"], constraint(how["gamma"]), chances)
        bank = cast(Bank, some.client_state.bank(how["digest"]))
        stack.hold(how["digest"], bank.values)
        batches = {self._number[name]: draw.batch for name, draw in work.items()}
        pending = stack.weigh(batches, samples.alpha, layers)
        # While the GPU works: the derivative, and the next step's batches, which follow it there.
        samples.derivative  # noqa: B018 - is remembered
        self._drawn = {
            (name, t, s + 1, how["data"]): self._draw(name, t, s + 1, how["data"]) for name in work
        }
        coming = zip(batches, self._drawn.values(), strict=True)
        stack.prepare({number: draw.batch for number, draw in coming})
        found = pending.cpu()
        slopes = found[:, 1:].view(samples.alpha.shape)
        return samples.step(slopes, how["rate"], how["smoothing"]), found[:, 0].tolist()

    def _draw(self, name: str, t: int, s: int, split: str) -> Draw:
        """What chance gives a client for a step on beta."""
        client = self._clients[name]
        size = client.trainer.training.batch_size
        batch = pictures_of(client).weight_step(client.seeds, t, s, split, size)
        return Draw(batch, client.seeds.generator(name, Purpose.ALPHA, t, s))

    def _steps(self, name: str, t: int, training: Training) -> BatchPlan:
        """A client's batches of a round."""
        ready = self._ahead.get((name, t, training))
        client = self._clients[name]
        return ready or pictures_of(client).train_steps(client.seeds, t, training)

    def _stack(self, form: Form | None) -> Stack:
        """Made when it is first needed, for then its kernels are compiled, and for every form."""
        if self._made is None or self._form != form:
            from autofedavg.engines.simulator.stacked.stack import Stack

            clients, first = list(self._clients.values()), self._made is None
            training, layout = clients[0].trainer.training, clients[0].trainer.layout
            cases = [client.data.cases()["train"] for client in clients]
            lengths = [training.iterations or -(-n // training.batch_size) for n in cases]
            slots = slots_for(lengths, MOST_SLOTS)
            width = min(len(clients), MOST_SLOTS)
            pictures, layers = self._pictures(), layers_in(clients[0], form) or []
            frozen = form.frozen if form else 0
            self._made = None  # its memory is free before the next one asks for some
            self._made = Stack(
                layers, layout.formed(form), pictures, training.batch_size, slots, width, frozen
            )
            self._form = form
            if first:
                log.info("%d clients take their steps together, %d at a time", len(clients), slots)
        return self._made

    def _pictures(self) -> Pictures:
        """All sites' pictures, once."""
        if self._shown is None:
            from autofedavg.engines.simulator.stacked.stack import Pictures

            sites = [pictures_of(client) for client in self._clients.values()]
            shares = [site.pictures() for site in sites]
            self._shown = Pictures(
                torch.cat([images for images, _ in shares]),
                torch.cat([labels for _, labels in shares]).to(torch.int32),
                sites[0].shown,
                [0, *accumulate(len(images) for images, _ in shares[:-1])],
            )
        return self._shown
