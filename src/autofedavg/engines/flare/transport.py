"""The server's side of a FLARE job: asks sites, waits no longer than told, and decides nothing."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message as CellMessage

from autofedavg.core.errors import RunError
from autofedavg.engines.flare.codec import as_letter, as_weights, of_letter, of_weights
from autofedavg.engines.flare.export import TASKS
from autofedavg.engines.flare.pushing import WITHIN, answer, push
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.waiting import Patience

TOPIC = "autofedavg"
BY_TASK = frozenset(TASKS)  # what may carry a model: the others are small
LETTERS = frozenset({"hello", "update_beta", "class_counts"})  # these others
IN_LETTERS = frozenset({"beta"})  # the arrays that they may carry
GLANCE = 0.25  # seconds between looks at whether the job was stopped or a site lost
LOOK_EVERY = 3.0  # seconds between looks at whether a site that owes an answer is still there
PING = 2.0  # seconds


class FlareTransport:
    """Carries notes between this job's Controller and the Executors of its sites.

    Args:
        controller: the job's.
        context: of FLARE, for all that is sent.
        stopped: FLARE's sign that the job was stopped.
        wanted: the sites of the job, connected or not.
    """

    name = "flare"

    def __init__(
        self, controller: Controller, context: FLContext, stopped: Signal, wanted: Iterable[str]
    ) -> None:
        self._controller, self._context, self._stopped = controller, context, stopped
        self._engine = context.get_engine()
        self._wanted = frozenset(wanted)

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> dict[str, Message | NoReply]:
        """Sends each named site its note; returns each one's answer, or why there is none.

        Raises:
            RunError: the job was stopped.
        """
        here = self._joined()
        answers: dict[str, Message | NoReply] = {
            name: NoReply("is not in this job") for name in messages if name not in here
        }
        asked = {name: note for name, note in messages.items() if name in here}
        carry = self._by_tasks if verb in BY_TASK else self._by_messages
        answers |= carry(verb, asked, within)
        if self._stopped.triggered:
            raise _stopped()
        return answers

    def waiting(self) -> set[str]:
        """Sites that are connected and that this job cannot reach: only a new job would.

        FLARE never hands a running job to a site that comes late or comes back.
        """
        return self._without_job(self._wanted)

    def present(self) -> set[str] | None:
        """Sites whose job's process is connected to the server now.

        Told by the server's main process, which knows at once when a connection ends; FLARE's own
        heartbeats take minutes.
        """
        try:
            here = self._connected_to([FQCN.ROOT_SERVER]).get(FQCN.ROOT_SERVER)
        except RunError:
            return None
        return None if here is None else {n for n in self._wanted if self._worker(n) in here}

    def _joined(self) -> set[str]:
        return {client.name for client in self._engine.get_clients()}

    def _without_job(self, names: Iterable[str]) -> set[str]:
        """Those whose main process is connected to the server but has no process of this job.

        A site that is busy, paused or cut off is not among them. FLARE's own simulator has no
        main processes, so there is never any.
        """
        address = {self._address(name): name for name in names}
        return {
            address[main]
            for main, here in self._connected_to(address).items()
            if self._worker(address[main]) not in here
        }

    def _address(self, name: str) -> str:
        """A site's main process."""
        known = {client.name: client.get_fqcn() for client in self._engine.get_clients()}
        return str(known.get(name, name))

    def _worker(self, name: str) -> str:
        """A site's process of this job."""
        return str(FQCN.join([self._address(name), self._context.get_job_id()]))

    def _connected_to(self, addresses: Iterable[str]) -> dict[str, list[str]]:
        """Which processes are connected to each of these, as far as it says so.

        Raises:
            RunError: the job was stopped.
        """
        cell, asked = self._engine.get_cell(), list(addresses)
        if cell is None or not asked:
            return {}
        try:
            replies = cell.core_cell.broadcast_request(
                channel="_net_manager",
                topic="peers",
                targets=asked,
                request=CellMessage(),
                timeout=PING,
                optional=True,
            )
        except RuntimeError as error:  # its server's main process has died
            raise _stopped() from error
        return {
            address: reply.payload
            for address, reply in replies.items()
            if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
            and isinstance(reply.payload, list)
        }

    def _by_messages(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> dict[str, Message | NoReply]:
        """Small notes: pushed, and answered at once."""
        replies = push(self._context, TOPIC, verb, messages, within, as_letter)
        return {name: answer(replies.get(name), of_letter, within) for name in messages}

    def _by_tasks(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> dict[str, Message | NoReply]:
        """Notes with models: each site fetches its task, and its own filters see it."""
        started = time.monotonic()
        results: dict[str, object] = {}
        news = threading.Condition()

        def arrived(client_task: Any, fl_ctx: FLContext) -> None:  # noqa: ARG001 - FLARE's names
            with news:
                results[client_task.client.name] = client_task.result
                client_task.result = None
                news.notify_all()

        tasks = {}
        ready: dict[int, Shareable] = {}
        for name, note in messages.items():
            if id(note) not in ready:  # FLARE copies what it writes into
                ready[id(note)] = message = as_weights(note)
                message.set_header(WITHIN, within)
            tasks[name] = Task(
                name=verb,
                data=ready[id(note)],
                timeout=math.ceil(within) + 1 if within else 0,
                result_received_cb=arrived,
            )
            self._controller.send(task=tasks[name], fl_ctx=self._context, targets=[name])
        gone: set[str] = set()
        look, patience = started + LOOK_EVERY, Patience(verb, started)
        while not self._stopped.triggered:
            with news:
                open_still = [name for name in tasks if name not in results and name not in gone]
                left = math.inf if within is None else started + within - time.monotonic()
                if not open_still or left <= 0:
                    break
                news.wait(min(left, GLANCE))
            patience.look(open_still)
            if time.monotonic() > look:
                gone |= self._lost_among(open_still)
                look = time.monotonic() + LOOK_EVERY
        with news:
            arrived_all = dict(results)
        for name, task in tasks.items():
            if name not in arrived_all:
                self._controller.cancel_task(task)
        return {
            name: NoReply("its part of the job has ended")
            if name in gone and name not in arrived_all
            else answer(arrived_all.get(name), of_weights, within)
            for name in tasks
        }

    def _lost_among(self, names: Iterable[str]) -> set[str]:
        """Those that cannot answer any more: waiting for them would be in vain."""
        dead = {name for name in names if self._controller.get_client_disconnect_time(name)}
        return dead | self._without_job(names)


def _stopped() -> RunError:
    return RunError(
        "the job was stopped",
        where="FLARE",
        remedy="submit it again: it goes on from the last round",
    )
