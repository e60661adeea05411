"""A note as it travels: plain values as text, arrays as the bytes of NumPy files.

Whoever only hands it on, as Flower's process at a site does, needs neither PyTorch nor NumPy.

A frame on a socket is "AFP1" | length of the head (8 bytes, big-endian) | the head as JSON | the
arrays, one after another.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MAGIC = b"AFP1"
MOST_HEAD = 128 * 2**20  # bytes; the values themselves may be 64 MiB
MOST_BYTES = 2**40
_PIECE = 2**20


class BadParcel(ValueError):
    """What arrived is no parcel."""


@dataclass(frozen=True)
class Packed:
    """An array: how Flower names its type and shape, and a NumPy file's bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview


@dataclass(frozen=True)
class Parcel:
    """A note on its way.

    Attributes:
        facts: its plain values, as JSON.
        arrays: its arrays.
        bfloat16: those that travel as int16, since NumPy has no such type.
        about: what the carriers tell each other: the verb, the site, the job.
        digest: over values and arrays, made where the note was and checked where it is read.
    """

    facts: str = "{}"
    arrays: Mapping[str, Packed] = field(default_factory=dict)
    bfloat16: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""


def send(to: socket.socket, parcel: Parcel) -> None:
    """Writes a parcel to a socket."""
    head = json.dumps(
        {
            "about": dict(parcel.about),
            "facts": parcel.facts,
            "bfloat16": list(parcel.bfloat16),
            "digest": parcel.digest,
            "arrays": [
                [key, packed.dtype, list(packed.shape), len(packed.data)]
                for key, packed in parcel.arrays.items()
            ],
        }
    ).encode()
    to.sendall(MAGIC + len(head).to_bytes(8, "big") + head)
    for packed in parcel.arrays.values():
        to.sendall(packed.data)


def receive(source: socket.socket) -> Parcel:
    """Reads a parcel from a socket.

    Raises:
        BadParcel: what comes is not exactly a parcel.
        EOFError: the other side is gone.
    """
    start = _exactly(source, len(MAGIC) + 8)
    length = int.from_bytes(start[len(MAGIC) :], "big")
    if start[: len(MAGIC)] != MAGIC or length > MOST_HEAD:
        raise BadParcel("it does not begin as a parcel does")
    parcel, sizes = _read_head(_exactly(source, length))
    arrays = {
        key: Packed(packed.dtype, packed.shape, _exactly(source, size))
        for (key, packed), size in zip(parcel.arrays.items(), sizes, strict=True)
    }
    return replace(parcel, arrays=arrays)


def _exactly(source: socket.socket, count: int) -> bytearray:
    got = bytearray()
    while len(got) < count:  # grows with what comes, not with what was announced
        piece = source.recv(min(_PIECE, count - len(got)))
        if not piece:
            raise EOFError("the connection ended")
        got += piece
    return got


def _read_head(text: bytearray) -> tuple[Parcel, list[int]]:
    try:
        head: Any = json.loads(text)
        arrays, sizes = {}, []
        for key, dtype, shape, size in head["arrays"]:
            if key in arrays or not 0 <= _whole(size) <= MOST_BYTES:
                raise BadParcel("its arrays are not what they are said to be")
            arrays[_word(key)] = Packed(_word(dtype), tuple(_whole(n) for n in shape), b"")
            sizes.append(size)
        about = {_word(key): _word(value) for key, value in head["about"].items()}
        halves = tuple(_word(key) for key in head["bfloat16"])
        return Parcel(_word(head["facts"]), arrays, halves, about, _word(head["digest"])), sizes
    except BadParcel:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadParcel("its head cannot be read") from error


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise BadParcel(f"{type(value).__name__} where a text belongs")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadParcel(f"{type(value).__name__} where a whole number belongs")
    return value
