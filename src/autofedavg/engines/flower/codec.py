"""Messages as the records of Flower's messages: one array of bytes, and a few words about it."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, RecordDict

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
    return RecordDict({ABOUT: about_record(about), MESSAGE: to_record(message)})


def from_records(content: RecordDict) -> tuple[Message, dict[str, str]]:
    """Reads a message, and what is said about it, from the content of a Flower message.

    Raises:
        WireError: the content holds no valid message.
    """
    return from_record(content.get(MESSAGE)), about_of(content)


def about_record(about: Mapping[str, str]) -> ConfigRecord:
    """Words as a record."""
    values: dict[str, ConfigRecordValues] = {**about}
    return ConfigRecord(values)


def about_of(content: RecordDict) -> dict[str, str]:
    """What the content of a Flower message says about it; empty where it says nothing."""
    record = content.get(ABOUT)
    if not isinstance(record, ConfigRecord):
        return {}
    return {key: value for key, value in record.items() if isinstance(value, str)}
