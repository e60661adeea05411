"""A fake of FLARE's network endpoint, for tests: calls its filters, and records replies.

Real processes show what FLARE does with them (test_flare_intruder.py).
"""

from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)

AUX = CellChannel.AUX_COMMUNICATION


class Cell:
    def __init__(self, name: str) -> None:
        self.name, self.filters, self.commands, self.sent = name, [], [], []

    @property
    def core_cell(self):
        return self

    byte_receiver = core_cell

    def get_fqcn(self) -> str:
        return self.name

    def add_incoming_filter(self, channel: str, topic: str, cb) -> None:
        assert (channel, topic) == ("*", "*")
        self.filters.append(cb)

    def add_incoming_request_filter(self, channel: str, topic: str, cb) -> None:
        assert (channel, topic) == (CellChannel.CLIENT_MAIN, "*")
        self.commands.append(cb)

    def reject(self, message, error) -> None:
        self.sent.append((message.get_header(MessageHeaderKey.ORIGIN), str(error)))

    def send_reply(self, reply, to_cell: str, for_req_ids: list) -> None:
        self.sent.append((to_cell, reply.get_header(MessageHeaderKey.ERROR), for_req_ids))

    def refuses(self, origin: str, channel: str, topic: str, **how) -> bool:
        """Whether a message is kept out, as one request and as a piece of a stream."""
        found = {self.refuses_one(request(self.name, origin, channel, topic, **how))}
        found.add(self.refuses_one(piece(self.name, origin, channel, topic)))
        (refused,) = found
        return refused

    def refuses_one(self, message: Message) -> bool:
        return any(check(message) is not None for check in self.filters)


def request(to: str, origin: str, channel: str, topic: str, **how) -> Message:
    headers = {
        MessageHeaderKey.DESTINATION: to,
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.CHANNEL: channel,
        MessageHeaderKey.TOPIC: topic,
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.REPLY_EXPECTED: True,
        MessageHeaderKey.REQ_ID: "7",
    }
    return Message(headers | how)


def piece(to: str, origin: str, channel: str, topic: str) -> Message:
    message = request(to, origin, STREAM_CHANNEL, STREAM_DATA_TOPIC)
    message.add_headers({StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic})
    return message
