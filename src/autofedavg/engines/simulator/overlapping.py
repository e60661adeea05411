"""The simulator's clients on one GPU, each training on a stream of its own (decision 69)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from operator import methodcaller
from typing import cast

import torch

from autofedavg.core.problem import LocalData
from autofedavg.core.seeds import Seeds, every_state_kept
from autofedavg.core.trainer import Batch, LocalTrainer, Training
from autofedavg.engines.simulator.lanes import Lane
from autofedavg.engines.simulator.room import MOST, Memory, Room
from autofedavg.engines.simulator.turns import Job, Pause, in_turns
from autofedavg.federation.client import Client, ClientGroup, error_as_reply
from autofedavg.federation.messages import Message, refuse_unknown

LEARNING = ("update_beta", "differentiate", "masked_gradient")  # gradients, but no training


def why_not_overlapped(clients: Mapping[str, Client]) -> str:
    """Why clients train one after another; nothing where they can overlap."""
    some = next(iter(clients.values()))
    if some.private:
        return "their steps are differentially private"
    if not some.trainer.recorded:
        return "their steps cannot be recorded"
    return ""


class OverlappedGroup(ClientGroup):
    """Clients that train and learn side by side; whatever else is asked, they answer one by one.

    Args:
        clients: with one trainer for all, which becomes the first lane's.
        most: how many may train at once, if the GPU has room for them.
        at_once: how many do; asked before every cycle of turns.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        most: int = MOST,
        at_once: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(clients)
        self._trainer = next(iter(clients.values())).trainer
        self._device = self._trainer.device
        if self._device.type == "cuda" and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        network = 4 * self._trainer.flat.nbytes  # with its gradient and two moments
        self._at_once = at_once or Room(min(len(clients), most), network, Memory(self._device))
        self._lanes: list[Lane] = []
        self._free: list[Lane] = []

    def answer(self, verb: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        if verb not in ("local_train", *LEARNING):
            return super().answer(verb, messages)
        answers: dict[str, Message] = {}
        with every_state_kept():
            for name, message in messages.items():
                with error_as_reply(answers, name):
                    refuse_unknown(name, verb, message.facts)
            asked = {name: message for name, message in messages.items() if name not in answers}
            if verb == "local_train":
                self._train(asked, answers)
            else:
                jobs = [self._job(name, methodcaller(verb, asked[name]), answers) for name in asked]
                in_turns(jobs, lambda: len(self._lanes))
        return {name: answers[name] for name in messages}

    def _train(self, messages: Mapping[str, Message], answers: dict[str, Message]) -> None:
        trainings = self.trainings(messages, answers)
        # The longest ones first, so that all end at about the same time.
        order = sorted(trainings, key=lambda name: -self._steps(name, trainings[name].training))
        jobs = [self._job(name, methodcaller("train", trainings[name]), answers) for name in order]
        in_turns(jobs, self._at_once)

    def _steps(self, name: str, training: Training) -> int:
        cases = self._clients[name].data.cases()["train"]
        return training.iterations or training.epochs * -(-cases // training.batch_size)

    def _job(self, name: str, do: Callable[[Client], Message], answers: dict[str, Message]) -> Job:
        """What a client is asked for, as a job that takes a lane while it is under way."""

        def job(pause: Pause) -> None:
            gpu = self._device.type == "cuda"
            with torch.cuda.device(self._device) if gpu else nullcontext():  # a thread has its own
                lane = self._free.pop() if self._free else self._new_lane()
                try:
                    with error_as_reply(answers, name), lane.open(pause) as outside:
                        answers[name] = do(self._at(lane, name, outside))
                finally:
                    self._free.append(lane)

        return job

    def _new_lane(self) -> Lane:
        """Another lane: the first has the group's trainer, the others copies of it."""
        some = self._trainer
        if self._lanes:
            network = copy.deepcopy(some.network)
            some = LocalTrainer(network, some.loss_of, some.training, some.device, some.recorded)
        self._lanes.append(Lane(some))
        return self._lanes[-1]

    def _at(self, lane: Lane, name: str, pause: Pause) -> Client:
        """A client at work in a lane."""
        client = copy.copy(self._clients[name])
        client.trainer = lane.trainer
        client.data = cast(LocalData, _Paced(client.data, lane, pause))
        return client


class _Paced:
    """A site's data whose batches are given one a turn."""

    def __init__(self, data: LocalData, lane: Lane, pause: Pause) -> None:
        self._data, self._lane, self._pause = data, lane, pause

    def __getattr__(self, name: str) -> object:
        return getattr(self._data, name)

    def train_batches(self, seeds: Seeds, t: int, training: Training) -> Iterator[Batch]:
        return self._lane.paced(self._data.train_batches(seeds, t, training), self._pause)
