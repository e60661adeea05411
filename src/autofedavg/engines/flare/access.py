"""A site's door on FLARE: only the server is let in, and to the site's desk only the server's job.

FLARE carries messages from site to site: the server checks who sends them and passes them on. A
site's processes answer whoever asks, so each of them looks at where a message comes from, before
anything in it is read.
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

ANY = "*"  # FLARE's word for every channel, and for every topic
SUPER = "super"  # a role that FLARE's authorisation lets do everything, "for testing purpose"
MOST_LINES = 100  # in the log, of refusals: a stranger may ask without end


class Door:
    """Stands before one process of a site and lets in what the server and the site itself send.

    Args:
        cell: the process's end of FLARE's network.
        letters: the topic of messages to the desk, which only the server's job may send.

    FLARE asks a filter before it decrypts, decodes or passes on anything. One for a channel of its
    own would see no letters: they come as pieces of a stream, whose headers name channel and topic.
    """

    def __init__(self, cell: Cell, letters: str | None = None) -> None:
        self._cell, self._name = cell, str(cell.get_fqcn())
        path = FQCN.split(self._name)
        # The site's main process is the parent of its job's process, and has no such topic.
        self._site = FQCN.join(path[:-1]) if letters else self._name
        self._letters = (CellChannel.AUX_COMMUNICATION, letters)
        # FLARE's own simulator has one process for the server and its job.
        job = [] if path[-1] == SimulatorConstants.JOB_NAME else path[-1:]
        self._server = FQCN.join([FQCN.ROOT_SERVER, *job])
        self._refused: set[tuple[str, ...]] = set()
        cell.core_cell.add_incoming_filter(channel=ANY, topic=ANY, cb=self.check)

    def check(self, message: Message) -> Message | None:
        """Nothing where a message may come in, else what FLARE is to do with it: nothing more."""
        if message.get_header(MessageHeaderKey.DESTINATION) != self._name:
            return None  # for another process of this site, which has a door of its own
        if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
            return None  # an answer, of use only to one who has asked
        origin = str(message.get_header(MessageHeaderKey.ORIGIN))
        asked = _asked(message)
        if origin == self._server if asked == self._letters else self._may_ask(origin):
            return None
        return self._refuse(message, origin, asked)

    def _may_ask(self, origin: str) -> bool:
        """The server, this site's own processes, and relays between the two."""
        return (
            FqcnInfo(origin).is_on_server
            or origin == self._site
            or FQCN.is_ancestor(self._site, origin)
            or FQCN.is_ancestor(origin, self._site)
        )

    def _refuse(self, message: Message, origin: str, asked: tuple[str, str]) -> Message:
        who, what = from_outside(origin), from_outside(" ".join(asked))
        if (who, what) not in self._refused and len(self._refused) < MOST_LINES:
            self._refused.add((who, what))
            log.warning("refused: %s asked %s for %s, and may not", who, self._name, what)
        reply = make_reply(ReturnCode.UNAUTHENTICATED, f"{self._name} refuses {what} to {who}")
        said = reply.get_header(MessageHeaderKey.ERROR)
        if _is_piece(message):
            self._cell.byte_receiver.reject(message, StreamError(said))
        elif message.get_header(MessageHeaderKey.REPLY_EXPECTED):
            number = message.get_header(MessageHeaderKey.REQ_ID)
            self._cell.core_cell.send_reply(reply, to_cell=origin, for_req_ids=[number])
        return reply


class SiteDoor(FLComponent):  # type: ignore[misc]
    """The door of a site's main process; `autofedavg allow` puts it into the kit."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # before the site says who it is
            cell = fl_ctx.get_engine().get_cell()
            Door(cell)
            cell.core_cell.add_incoming_request_filter(
                channel=CellChannel.CLIENT_MAIN, topic=ANY, cb=refused_command
            )


def refused_command(message: Message) -> Message | None:
    """A refusal where an administrator's command is one that this site takes from nobody.

    FLARE's site believes the request on whether its right is to be looked at, and on the role of
    who asks. So files are shown to nobody, and nobody has the role that may do everything.
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
    log.warning("refused: this site takes no command with %s", what)
    return new_cell_message({}, error_reply(f"this site refuses {what}: not authorized"))


def _is_piece(message: Message) -> bool:
    way = (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC)
    return [message.get_header(key) for key in way] == [STREAM_CHANNEL, STREAM_DATA_TOPIC]


def _asked(message: Message) -> tuple[str, str]:
    """Channel and topic of a message, or of the stream that it is a piece of."""
    keys: Any = StreamHeaderKey if _is_piece(message) else MessageHeaderKey
    return str(message.get_header(keys.CHANNEL)), str(message.get_header(keys.TOPIC))
