"""A note as bytes: plain values as JSON, tensors as safetensors, and a digest over both.

No pickle, and nothing is believed: bytes that are not exactly such a note are refused.

    "AFA1" | blake2b of the rest (16 bytes) | length of the JSON (8 bytes, big-endian)
           | the JSON | the tensors
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from autofedavg.core.errors import AutoFedAvgError, printable
from autofedavg.core.site import Facts
from autofedavg.federation.messages import Message

MAGIC = b"AFA1"
MOST_FACTS = 64 * 2**20  # bytes of JSON: the scores of some hundred thousand cases
MOST_ARRAYS = 100_000
TYPES = frozenset(
    {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8}
    | {torch.uint8}
)
_DIGEST = 16
_HEAD = len(MAGIC) + _DIGEST + 8
_LARGEST = 2**63  # a whole number is one that tensors and other languages can hold
# A tensor of nothing may still have strides that no number holds.
_UNREADABLE = (
    *(SafetensorError, ValueError, KeyError, TypeError),
    *(RuntimeError, OverflowError, MemoryError),
)


class WireError(AutoFedAvgError):
    """What arrived is not a note."""


def encode(message: Message) -> bytes:
    """A note as bytes.

    Example:
        >>> decode(encode(Note({}, {"t": 1}))).facts
        {'t': 1}
    """
    facts = facts_text(message.facts).encode()
    tensors = save(
        {key: array.detach().cpu().contiguous() for key, array in message.arrays.items()}
    )
    rest = len(facts).to_bytes(8, "big") + facts + tensors
    return MAGIC + hashlib.blake2b(rest, digest_size=_DIGEST).digest() + rest


def decode(data: bytes) -> Message:
    """The note in these bytes.

    Raises:
        WireError: they are not exactly what `encode` makes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        _refuse(f"it is {type(data).__name__}, not bytes")
    data = bytes(data)
    if len(data) < _HEAD or data[: len(MAGIC)] != MAGIC:
        _refuse("it does not begin as a note does")
    rest = data[len(MAGIC) + _DIGEST :]
    if hashlib.blake2b(rest, digest_size=_DIGEST).digest() != data[len(MAGIC) : -len(rest)]:
        _refuse("it was changed on its way: its digest differs")
    length = int.from_bytes(rest[:8], "big")
    if length > len(rest) - 8:
        _refuse("it is cut off")
    facts = facts_of_text(rest[8 : 8 + length])
    try:
        arrays = load(rest[8 + length :])
    except _UNREADABLE as error:
        raise WireError(f"this is no note: its tensors cannot be read ({error})") from error
    return checked(arrays, facts)


def seal(facts: str, arrays: Mapping[str, Tensor]) -> str:
    """A digest over a note's JSON and its tensors, for carriers that take them apart."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    digest.update(json.dumps([facts, len(arrays)]).encode())
    for name in sorted(arrays):
        array = arrays[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        if array.numel():
            digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def refuse_changed(told: object, facts: str, arrays: Mapping[str, Tensor]) -> None:
    """Refuses a note that does not have the digest it was sent with.

    Raises:
        WireError: it was changed on its way.
    """
    if not isinstance(told, str) or told != seal(facts, arrays):
        _refuse("it was changed on its way: its digest differs")


def facts_text(facts: Mapping[str, Any]) -> str:
    """A note's plain values as JSON."""
    return json.dumps(facts, allow_nan=False)


def not_sent(verb: str, error: Exception) -> Message:
    """What a site says where its answer cannot be encoded: nothing of what was in it."""
    kind = type(error).__name__
    asked = printable(verb)[:80]
    return Message({}, {"error": f"its answer to {asked} cannot be sent ({kind}); see its own log"})


def facts_of_text(text: object) -> Facts:
    """The plain values in a JSON text from outside.

    Raises:
        WireError: it is not the JSON of a table of plain values.
    """
    if not isinstance(text, str | bytes) or len(text) > MOST_FACTS:
        _refuse(f"its values are no text of at most {MOST_FACTS} bytes")
    try:
        # Given bytes, json would guess an encoding and let halves of letters through.
        text = text.decode() if isinstance(text, bytes) else text
        facts = json.loads(
            text,
            parse_constant=_no_constant,
            parse_int=_whole,
            parse_float=_finite,
            object_pairs_hook=_table,
        )
        if not text.isascii() or "\\ud" in text or "\\uD" in text:
            json.dumps(facts, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise WireError(f"this is no note: its values are not JSON ({error})") from error
    if not isinstance(facts, dict):
        _refuse("its values are no table")
    return dict(facts)


def checked(arrays: object, facts: Facts) -> Message:
    """A note of tensors from outside, if they are such as a note may hold.

    Raises:
        WireError: they are not.
    """
    if not isinstance(arrays, Mapping) or len(arrays) > MOST_ARRAYS:
        _refuse("its tensors are no table")
    for name, array in arrays.items():
        if not isinstance(name, str) or not isinstance(array, Tensor):
            _refuse("its tensors are no table of names and tensors")
        if array.dtype not in TYPES or array.layout != torch.strided:
            _refuse(f"a tensor is of type {array.dtype}")
    return Message(dict(arrays), facts)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):  # readers differ in which of two they believe
        raise ValueError("a name stands in a table twice")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -_LARGEST <= (value := int(digits)) < _LARGEST:
        raise ValueError("a whole number is too large")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _refuse(why: str) -> NoReturn:
    raise WireError(f"this is no note: {why}")
