"""Access checks of a site's FLARE processes: only the server and the site itself may send to them.

FLARE routes messages between sites: the server authenticates the sender and forwards them. A site's
processes would reply to any sender. So each of them checks the origin of a message before it reads
anything else.
"""

from __future__ import annotations

import logging
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN, FqcnInfo
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.f3.streaming.stream_types import StreamError
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, SysCommandTopic
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from autofedavg.core.errors import from_outside

log = logging.getLogger(__name__)

ANY = "*"  # FLARE's wildcard for channels and topics
SUPER = "super"  # a role that FLARE's authorization lets do everything, "for testing purpose"
MOST_LINES = 100  # logged refusals: a stranger may send without end


class AccessCheck:
    """Lets one process of a site receive only what the server and the site itself send.

    Args:
        cell: the process's endpoint in FLARE's network.
        topic: of aux messages to the site's service, which only the server's job may send.

    FLARE calls this filter before it decrypts, decodes or forwards a message. A filter on the aux
    channel would see no aux message: they arrive as chunks of a stream, whose headers name channel
    and topic.
    """

    def __init__(self, cell: Cell, topic: str | None = None) -> None:
        self._cell, self._name = cell, str(cell.get_fqcn())
        path = FQCN.split(self._name)
        # The site's main process, which has no such topic, is the parent of its job's process.
        self._site = FQCN.join(path[:-1]) if topic else self._name
        self._service = (CellChannel.AUX_COMMUNICATION, topic)
        # FLARE's own simulator runs the server and its job in one process.
        job = [] if path[-1] == SimulatorConstants.JOB_NAME else path[-1:]
        self._server = FQCN.join([FQCN.ROOT_SERVER, *job])
        self._refused: set[tuple[str, ...]] = set()
        cell.core_cell.add_incoming_filter(channel=ANY, topic=ANY, cb=self.check)

    def check(self, message: Message) -> Message | None:
        """Returns None for a message that may pass, else the reply with which FLARE ends it."""
        if message.get_header(MessageHeaderKey.DESTINATION) != self._name:
            return None  # for another process of this site, which has a check of its own
        if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
            return None  # a reply, of use only to a process that has sent a request
        origin = str(message.get_header(MessageHeaderKey.ORIGIN))
        target = _target(message)
        if origin == self._server if target == self._service else self._is_trusted(origin):
            return None
        return self._refuse(message, origin, target)

    def _is_trusted(self, origin: str) -> bool:
        """Whether it is the server, a process of this site, or a relay between the two."""
        return (
            FqcnInfo(origin).is_on_server
            or origin == self._site
            or FQCN.is_ancestor(self._site, origin)
            or FQCN.is_ancestor(origin, self._site)
        )

    def _refuse(self, message: Message, origin: str, target: tuple[str, str]) -> Message:
        who, what = from_outside(origin), from_outside(" ".join(target))
        if (who, what) not in self._refused and len(self._refused) < MOST_LINES:
            self._refused.add((who, what))
            log.warning("refused: %s asked %s for %s without permission", who, self._name, what)
        reply = make_reply(ReturnCode.UNAUTHENTICATED, f"{self._name} refuses {what} to {who}")
        if _is_chunk(message):
            error = StreamError(reply.get_header(MessageHeaderKey.ERROR))
            self._cell.byte_receiver.reject(message, error)
        elif message.get_header(MessageHeaderKey.REPLY_EXPECTED):
            number = message.get_header(MessageHeaderKey.REQ_ID)
            self._cell.core_cell.send_reply(reply, to_cell=origin, for_req_ids=[number])
        return reply


class SiteAccessCheck(FLComponent):  # type: ignore[misc]
    """The access check of a site's main process; `autofedavg allow` adds it to the kit."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # before the site registers
            cell = fl_ctx.get_engine().get_cell()
            AccessCheck(cell)
            cell.core_cell.add_incoming_request_filter(
                channel=CellChannel.CLIENT_MAIN, topic=ANY, cb=refused_command
            )


def refused_command(message: Message) -> Message | None:
    """Returns a refusal for an administrator's command that this site accepts from nobody.

    FLARE's site trusts the request on the sender's role, and on whether to check rights at all. So
    it must refuse every shell command, and every request in the role that may do everything.
    """
    command: Any = message.payload
    if command.topic == SysCommandTopic.SHELL:
        return _refusal("shell commands")
    meta = command.get_header(RequestHeader.JOB_META) or {}
    roles = {
        command.get_header(RequestHeader.USER_ROLE),
        command.get_header(RequestHeader.SUBMITTER_ROLE),
        meta.get(JobMetaKey.SUBMITTER_ROLE.value),
    }
    return _refusal(f"the role {SUPER}") if SUPER in roles else None


def _refusal(what: str) -> Message:
    log.warning("refused: this site accepts no command with %s", what)
    return new_cell_message({}, error_reply(f"this site refuses {what}: not authorized"))


def _is_chunk(message: Message) -> bool:
    """Whether a message is a chunk of a stream."""
    keys = (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC)
    return [message.get_header(key) for key in keys] == [STREAM_CHANNEL, STREAM_DATA_TOPIC]


def _target(message: Message) -> tuple[str, str]:
    """Channel and topic of a message, or of the stream that it is a chunk of."""
    keys: Any = StreamHeaderKey if _is_chunk(message) else MessageHeaderKey
    return str(message.get_header(keys.CHANNEL)), str(message.get_header(keys.TOPIC))
