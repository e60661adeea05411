"""Worker processes of the simulator, and the memory they share with it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import multiprocessing
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import AutoFedAvgError
from autofedavg.federation import waiting as patience
from autofedavg.federation.client import ClientGroup
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, NoReply

LONG = 60.0  # seconds for what takes a hundredth of one
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
Packed = tuple[dict[str, Any], dict[str, Any]]


class Arena:
    """The (K, D) matrix of all clients' models, and one row for what is sent to everybody.

    Every client's own model is a row of it, so gathering the bank and sharing models copy nothing.
    Between processes there is a second matrix, of gradients; the system gives it memory when it is
    first written to.
    """

    def __init__(
        self, names: Sequence[str], layout: Layout, device: torch.device, shared: bool
    ) -> None:
        counters = sum(shape.numel() for _, shape in layout.counters)
        rows = len(names) + 1  # the last one for everybody
        make = _shared_zeros if shared else torch.zeros
        self._tables = {
            "values": make((rows, layout.size), dtype=layout.dtype).to(device),
            "counters": make((rows, counters), dtype=torch.int64).to(device),
        }
        if shared:
            self._tables["gradient"] = make((rows, layout.trainable), dtype=layout.dtype)
        self._row = {name: k for k, name in enumerate(names)}

    def client_state(self, name: str) -> ArenaState:
        return ArenaState(self, self._row[name])

    def model(self, row: int) -> Model:
        return Model(self._tables["values"][row], self._tables["counters"][row])

    def pack(self, verb: str, messages: Mapping[str, Message]) -> dict[str, Packed]:
        """Messages with their models replaced by rows of the arena; other tensors as they are.

        A model sent to everybody goes to the row for that; one of a single client's own to the
        row of that client, but for one that it only scores: its row holds the w_k of the round.
        """
        models = {id(message.arrays.get("values")) for message in messages.values()}
        homes: Mapping[str, int | None] = self._row
        if len(models) == 1:
            homes = dict.fromkeys(messages, len(self._row))
        elif verb == "evaluate":
            homes = dict.fromkeys(messages)
        return {name: self._packed(message, homes[name]) for name, message in messages.items()}

    def pack_answers(self, answers: Mapping[str, Message]) -> dict[str, Packed]:
        return {name: self._packed(answer, self._row[name]) for name, answer in answers.items()}

    def unpack(self, packed: Packed) -> Message:
        arrays, facts = packed
        found = {
            key: self._tables[what[0]][what[1]] if isinstance(what, tuple) else torch.tensor(what)
            for key, what in arrays.items()
        }
        return Message(found, facts)

    def _packed(self, message: Message, home: int | None) -> Packed:
        return {k: self._place(k, a, home) for k, a in message.arrays.items()}, message.facts

    def _place(self, key: str, array: Tensor, home: int | None) -> Any:
        kind, _, site = key.partition("/")
        row = self._row.get(site, home)
        if kind not in self._tables or row is None:
            return array.numpy()
        place = self._tables[kind][row]
        if place.shape != array.shape:  # a model of another form
            return array.numpy()
        if place.data_ptr() != array.data_ptr():
            place.copy_(array)
        return (kind, row)


class ArenaState(ClientState):
    """A client's own model is its row of the arena; one of another form is kept outside."""

    def __init__(self, arena: Arena, row: int) -> None:
        super().__init__()
        self._place = arena.model(row)

    def keep_own(self, model: Model) -> Model:
        if model.form is not None:
            return super().keep_own(model)
        self._own = self._place
        self._own.values.copy_(model.values)
        if model.counters.numel():
            self._own.counters.copy_(model.counters)
        return self._own


class Worker:
    """A forked process that runs one group of clients."""

    def __init__(self, group: ClientGroup, arena: Arena) -> None:
        self.names = group.names
        self._arena = arena
        self._asked, self._verb = 0, ""
        context = multiprocessing.get_context("fork")
        self._pipe, far = context.Pipe()
        self._process = context.Process(
            target=_work, args=(group, arena, far, self._pipe, os.getpid())
        )
        self._process.start()
        far.close()
        self._bell = select.poll()  # made once: `Connection.poll` makes one at every call
        self._bell.register(self._pipe, select.POLLIN)

    def send(self, verb: str, packed: Mapping[str, Packed]) -> bool:
        """Sends the messages to this worker's clients; says whether there are any."""
        mine = {name: packed[name] for name in self.names if name in packed}
        if mine:
            with contextlib.suppress(OSError):  # a dead worker: `receive` says so
                self._asked, self._verb = self._asked + 1, verb
                self._pipe.send((self._asked, verb, mine))
        return bool(mine)

    def receive(self, within: float | None, asked: float) -> dict[str, Message | NoReply]:
        """The group's replies, if they come within so many seconds of the request.

        Raises:
            AutoFedAvgError: the worker failed with an unexpected error.
        """
        try:
            number = 0
            while number != self._asked:  # answers to requests that were given up are passed over
                if not self._rings(within, asked):
                    return dict.fromkeys(self.names, NoReply(f"no answer within {within} s"))
                number, kind, content = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(1)
            reason = NoReply(f"its worker process ended with code {self._process.exitcode}")
            return dict.fromkeys(self.names, reason)
        if kind == "error":
            raise AutoFedAvgError(f"a worker failed:\n{content}")
        return {name: self._arena.unpack(packed) for name, packed in content.items()}

    def _rings(self, within: float | None, asked: float) -> bool:
        """Waits until there is something to read, or the time is over; says who is waited for."""
        waited = patience.Patience(self._verb, asked)
        until = math.inf if within is None else asked + within
        while True:
            left = max(0.0, until - time.monotonic())
            pause = min(left, patience.MINUTE)
            if self._bell.poll(1000 * pause):
                return True
            if pause == left:
                return False
            waited.look(self.names)

    def close(self, at_once: bool = False) -> None:
        """Ends the process; `at_once` even if it is in the middle of an answer."""
        if not at_once:
            with contextlib.suppress(OSError):
                self._pipe.send(None)
            self._process.join(5)
        self._pipe.close()
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def gradients_after_fork() -> bool:
    """Whether a process that is forked now could train.

    It could not once PyTorch has taken a gradient here, on any device, with a GPU in sight: it
    keeps threads for the GPU from then on, which a fork does not copy. It tells nobody but those
    who try.
    """
    if not torch.accelerator.is_available():
        return True
    trial = multiprocessing.get_context("fork").Process(target=_take_gradient)
    trial.start()
    trial.join(LONG)
    if trial.is_alive():
        trial.kill()
        trial.join()
    return trial.exitcode == 0


def _take_gradient() -> None:
    """Ends the process, by 0 if there was a gradient."""
    try:
        torch.ones(1, requires_grad=True).backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        os._exit(1)
    os._exit(0)


def _work(
    group: ClientGroup, arena: Arena, pipe: Connection, near: Connection, parent: int
) -> None:
    """Answers requests until the parent asks it to stop, or is gone."""
    near.close()
    if sys.platform == "linux":
        # Dies with its parent even in the middle of an answer: a resumed run wants the core.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGHUP):  # sent to all of a terminal; the parent ends us
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while os.getppid() == parent:
        if not pipe.poll(1.0):
            continue
        try:
            request = pipe.recv()
        except EOFError:
            return
        if request is None:
            return
        number, verb, packed = request
        with contextlib.suppress(BrokenPipeError):  # the parent is gone: the loop ends
            pipe.send((number, *_answer(group, arena, verb, packed)))


def _answer(
    group: ClientGroup, arena: Arena, verb: str, packed: Mapping[str, Packed]
) -> tuple[str, Any]:
    """("answers", by name), or ("error", its traceback): the parent raises it."""
    try:
        answers = group.answer(verb, {name: arena.unpack(what) for name, what in packed.items()})
    except Exception:
        return "error", traceback.format_exc()
    return "answers", arena.pack_answers(answers)


def _shared_zeros(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Zeros in memory that forked processes share, whatever the size of /dev/shm."""
    count = shape[0] * shape[1]
    if not count:
        return torch.zeros(shape, dtype=dtype)
    size = count * torch.empty((), dtype=dtype).element_size()
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype, count=count).reshape(shape)
