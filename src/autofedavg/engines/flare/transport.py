"""The server's side of a FLARE job: sends requests to sites and waits for their replies."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from autofedavg.engines.flare.codec import decode_bytes, decode_dxo, encode_bytes, encode_dxo
from autofedavg.federation.messages import KNOWN, WITH_MODELS, Message, NoReply
from autofedavg.federation.serialization import WireError
from autofedavg.federation.waiting import Patience

TOPIC = "autofedavg"
VERB, WITHIN = "autofedavg_verb", "autofedavg_within"  # headers of a request
AUX_VERBS = frozenset({"hello", *KNOWN}) - WITH_MODELS  # sent as aux messages, not as tasks
AUX_ARRAYS = frozenset({"beta"})  # the only arrays in an aux message
POLL = 0.25  # seconds between checks whether the job was stopped
LOOK_EVERY = 3.0  # seconds between checks whether sites that owe a reply are still connected
PING = 2.0  # seconds
NO_LIMIT = 30 * 24 * 3600.0  # seconds: FLARE's timeout for a request without a deadline


class FlareTransport:
    """Carries messages between a job's Controller and the Executors of its sites.

    `wanted` names the sites of the job, connected or not.
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
        """Sends each site its message; returns each site's reply, or why there is none.

        Raises:
            RunError: the job was stopped.
        """
        joined = {client.name for client in self._engine.get_clients()}
        replies: dict[str, Message | NoReply] = {
            name: NoReply("is not in this job") for name in messages if name not in joined
        }
        asked = {name: message for name, message in messages.items() if name in joined}
        if verb in WITH_MODELS:
            replies |= self._ask_by_tasks(verb, asked, within)
        else:
            found = send_aux(self._context, TOPIC, verb, asked, within, encode_bytes)
            replies |= {name: reply_in(found.get(name), decode_bytes, within) for name in asked}
        if self._stopped.triggered:
            raise _stopped(self._gone())
        return replies

    def waiting(self) -> set[str]:
        """Sites that are connected but outside this job; only a new job can reach them.

        FLARE never gives a running job to a site that connects late or reconnects.
        """
        return self._without_job(self._wanted)

    def present(self) -> set[str] | None:
        """Sites whose job process is connected to the server now; None where that is unknown.

        The server's main process notices a lost connection at once. FLARE's own heartbeats take
        minutes.
        """
        try:
            peers = self._peers([FQCN.ROOT_SERVER]).get(FQCN.ROOT_SERVER)
        except RunError:
            return None
        return None if peers is None else {n for n in self._wanted if self._job_cell(n) in peers}

    def _gone(self) -> str:
        """Which sites are no longer in the job, in words: FLARE does not say why it stops one."""
        present = self.present()
        gone = sorted(self._wanted - present) if present is not None else []
        if not gone:
            return ""
        said = f"{' and '.join(gone)} {'is' if len(gone) == 1 else 'are'} no longer present"
        if not present:
            said = "none of its sites is present any more"
        return f", and {said}: a site's process may have ended"

    def _without_job(self, names: Iterable[str]) -> set[str]:
        """Sites whose main process is connected to the server but runs no process of this job.

        A site that is busy, paused or cut off is not among them. FLARE's own simulator has no main
        processes, so there the set is empty.
        """
        sites = {self._main_cell(name): name for name in names}
        return {
            sites[cell]
            for cell, peers in self._peers(sites).items()
            if self._job_cell(sites[cell]) not in peers
        }

    def _main_cell(self, name: str) -> str:
        """The address of a site's main process."""
        known = {client.name: client.get_fqcn() for client in self._engine.get_clients()}
        return str(known.get(name, name))

    def _job_cell(self, name: str) -> str:
        """The address of a site's process of this job."""
        return str(FQCN.join([self._main_cell(name), self._context.get_job_id()]))

    def _peers(self, addresses: Iterable[str]) -> dict[str, list[str]]:
        """The processes connected to each of these, for those that reply.

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
        except RuntimeError as error:  # the server's main process has died
            raise _stopped() from error
        return {
            address: reply.payload
            for address, reply in replies.items()
            if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
            and isinstance(reply.payload, list)
        }

    def _ask_by_tasks(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> dict[str, Message | NoReply]:
        """Sends messages with models: each site fetches its task, and its filters see it."""
        started = time.monotonic()
        results: dict[str, object] = {}
        news = threading.Condition()

        def arrived(client_task: Any, fl_ctx: FLContext) -> None:  # noqa: ARG001 - FLARE's names
            with news:
                results[client_task.client.name] = client_task.result
                client_task.result = None
                news.notify_all()

        tasks: dict[str, Task] = {}
        encoded: dict[int, Shareable] = {}
        for name, message in messages.items():
            if id(message) not in encoded:  # FLARE copies what it writes to
                encoded[id(message)] = data = encode_dxo(message)
                data.set_header(WITHIN, within)
            tasks[name] = Task(
                name=verb,
                data=encoded[id(message)],
                timeout=math.ceil(within) + 1 if within else 0,
                result_received_cb=arrived,
            )
            self._controller.send(task=tasks[name], fl_ctx=self._context, targets=[name])
        lost: set[str] = set()  # those that can no longer reply
        look, patience = started + LOOK_EVERY, Patience(verb, started)
        while not self._stopped.triggered:
            with news:
                pending = [name for name in tasks if name not in results and name not in lost]
                left = math.inf if within is None else started + within - time.monotonic()
                if not pending or left <= 0:
                    break
                news.wait(min(left, POLL))
            patience.look(pending)
            if time.monotonic() > look:
                gone = self._controller.get_client_disconnect_time
                lost |= {name for name in pending if gone(name)} | self._without_job(pending)
                look = time.monotonic() + LOOK_EVERY
        with news:
            found = dict(results)
        for name, task in tasks.items():
            if name not in found:
                self._controller.cancel_task(task)
        return {
            name: NoReply("its part of the job has ended")
            if name in lost and name not in found
            else reply_in(found.get(name), decode_dxo, within)
            for name in tasks
        }


def send_aux(
    context: FLContext,
    topic: str,
    verb: str,
    messages: Mapping[str, Message],
    within: float | None,
    encode: Callable[[Message], Shareable],
) -> dict[str, object]:
    """Sends each site its message as an aux message; returns the replies that came back.

    FLARE's way to send different messages at once (multicast_aux_requests) fails in 2.9.0. So sites
    with the same message, usually all of them, are asked together.
    """
    engine = context.get_engine()
    groups: dict[int, list[str]] = {}
    for name, message in messages.items():
        groups.setdefault(id(message), []).append(name)

    def send(names: Sequence[str]) -> Mapping[str, object]:
        request = encode(messages[names[0]])
        request.set_header(VERB, verb)
        request.set_header(WITHIN, within)
        replies: Mapping[str, object] | None = engine.send_aux_request(
            targets=list(names),
            topic=topic,
            request=request,
            timeout=within or NO_LIMIT,
            fl_ctx=context,
            optional=True,
        )
        return replies or {}

    found: dict[str, object] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(groups))) as pool:
        for replies in pool.map(send, groups.values()):
            found |= replies
    return found


def reply_in(
    shareable: object, decode: Callable[[object], Message], within: float | None
) -> Message | NoReply:
    """The message in a reply, or why there is none."""
    if shareable is None:
        return NoReply("no answer" if within is None else f"no answer within {within:g} s")
    try:
        return decode(shareable)
    except WireError as error:
        return NoReply(str(error))


def _stopped(gone: str = "") -> RunError:
    return RunError(
        f"the job was stopped{gone}",
        where="FLARE",
        remedy="docs/how-to/lost-sites.md says how the run continues",
    )
