"""A message as bytes: plain values as JSON, tensors as safetensors, and a digest of both.

No pickle, and every bound is checked: `decode` refuses all bytes but those of a whole message.

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
    | {torch.int32, torch.uint8}
)
_DIGEST = 16  # bytes
_HEAD = len(MAGIC) + _DIGEST + 8
_LARGEST = 2**63  # whole numbers must fit into an int64
# An empty tensor may still have strides that overflow.
_UNREADABLE = (
    *(SafetensorError, ValueError, KeyError, TypeError),
    *(RuntimeError, OverflowError, MemoryError),
)


class WireError(AutoFedAvgError):
    """The received data are not a valid message."""


def encode(message: Message) -> bytes:
    """Encodes a message.

    Example:
        >>> decode(encode(Message({}, {"t": 1}))).facts
        {'t': 1}
    """
    facts = facts_text(message.facts).encode()
    tensors = save({key: _on_cpu(array) for key, array in message.arrays.items()})
    rest = (len(facts).to_bytes(8, "big"), facts, tensors)
    return b"".join((MAGIC, _digest(*rest), *rest))


def decode(data: object) -> Message:
    """Decodes a message from outside.

    Raises:
        WireError: the data are not exactly what `encode` returns.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        _refuse(f"got {type(data).__name__} instead of bytes")
    view = memoryview(data)
    if len(view) < _HEAD or view[: len(MAGIC)] != MAGIC:
        _refuse("wrong header")
    rest = view[len(MAGIC) + _DIGEST :]
    if _digest(rest) != view[len(MAGIC) : len(MAGIC) + _DIGEST]:
        _refuse("it was changed on its way: its digest differs")
    length = int.from_bytes(rest[:8], "big")
    if length > len(rest) - 8:
        _refuse("it is cut off")
    facts = facts_of_text(bytes(rest[8 : 8 + length]))
    try:
        # Copies: BLAS may sum in another order where memory is not aligned as PyTorch aligns it.
        arrays = {key: array.clone() for key, array in load(bytes(rest[8 + length :])).items()}
    except _UNREADABLE as error:
        raise WireError(f"Not a valid message: its tensors cannot be read ({error})") from error
    return checked(arrays, facts)


def seal(facts: str, arrays: Mapping[str, Tensor]) -> str:
    """A digest of a message's JSON and tensors, for engines that carry them separately."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    digest.update(json.dumps([facts, len(arrays)]).encode())
    for name in sorted(arrays):
        array = _on_cpu(arrays[name])
        digest.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        if array.numel():
            digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def refuse_changed(expected: object, facts: str, arrays: Mapping[str, Tensor]) -> None:
    """Compares a message with the digest it was sent with.

    Raises:
        WireError: they differ.
    """
    if not isinstance(expected, str) or expected != seal(facts, arrays):
        _refuse("it was changed on its way: its digest differs")


def facts_text(facts: Mapping[str, Any]) -> str:
    """Writes a message's plain values as JSON."""
    return json.dumps(facts, allow_nan=False)


def not_sent(verb: str, error: Exception) -> Message:
    """A site's reply where its real one cannot be encoded; quotes nothing of it."""
    kind = type(error).__name__
    asked = printable(verb)[:80]
    return Message({}, {"error": f"its answer to {asked} cannot be sent ({kind}); see its own log"})


def facts_of_text(text: object) -> Facts:
    """Reads a message's plain values from JSON.

    Raises:
        WireError: the text is not a JSON object within bounds.
    """
    if not isinstance(text, str | bytes) or len(text) > MOST_FACTS:
        _refuse(f"its values are not a text of at most {MOST_FACTS} bytes")
    try:
        # Given bytes, json would guess an encoding and accept lone surrogates.
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
        raise WireError(f"Not a valid message: its values are not JSON ({error})") from error
    if not isinstance(facts, dict):
        _refuse("its values are not a JSON object")
    return dict(facts)


def checked(arrays: object, facts: Facts) -> Message:
    """A message of tensors from outside.

    Raises:
        WireError: a tensor is of a kind that no message holds.
    """
    if not isinstance(arrays, Mapping) or len(arrays) > MOST_ARRAYS:
        _refuse(f"its tensors are not a table of at most {MOST_ARRAYS}")
    for name, array in arrays.items():
        if not isinstance(name, str) or not isinstance(array, Tensor):
            _refuse("its tensors are not a table of names and tensors")
        if array.dtype not in TYPES or array.layout != torch.strided:
            _refuse(f"a tensor is of type {array.dtype}")
    return Message(dict(arrays), facts)


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _on_cpu(array: Tensor) -> Tensor:
    return array.detach().cpu().contiguous()


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):  # readers differ in which of two they use
        raise ValueError("a name occurs twice in a table")
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
    raise WireError(f"Not a valid message: {why}")
