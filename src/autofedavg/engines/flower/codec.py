"""Messages as the records of Flower's messages: one array of bytes, and a few words about it."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import WireError, decode, encode

ABOUT, MESSAGE, BYTES = "about", "message", "bytes"
KIND = "autofedavg"  # of the array: `encode` wrote its bytes, not NumPy


def to_record(message: Message) -> ArrayRecord:
    """Puts a message into a record of one array, which Flower sends in chunks."""
    data = encode(message)
    return ArrayRecord({BYTES: Array("uint8", (len(data),), KIND, data)})


def from_record(record: object) -> Message:
    """Reads a message from a record.

    Raises:
        WireError: the record holds no valid message.
    """
    if not isinstance(record, ArrayRecord) or set(record) != {BYTES}:
        raise WireError("Not a valid message: its records are of another kind")
    if record[BYTES].stype != KIND:
        raise WireError("Not a valid message: its array was not encoded by autofedavg")
    return decode(record[BYTES].data)


def to_records(message: Message, about: Mapping[str, str]) -> RecordDict:
    """The content of a Flower message: the message, and the verb or the sender's site."""
    return RecordDict({ABOUT: ConfigRecord({**about}), MESSAGE: to_record(message)})


def from_records(content: RecordDict) -> tuple[Message, dict[str, str]]:
    """Reads a message, and what is said about it, from the content of a Flower message.

    Raises:
        WireError: the content holds no valid message.
    """
    about = content.get(ABOUT)
    words = about.items() if isinstance(about, ConfigRecord) else ()
    said = {key: value for key, value in words if isinstance(value, str)}
    return from_record(content.get(MESSAGE)), said
