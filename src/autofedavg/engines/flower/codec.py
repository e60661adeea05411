"""Notes as parcels, and parcels from outside as notes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from autofedavg.engines.flower.parcel import BadParcel, Packed, Parcel
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import (
    WireError,
    checked,
    facts_of_text,
    facts_text,
    refuse_changed,
    seal,
)

_TYPES = frozenset({"<f8", "<f4", "<f2", "<i8", "<i2", "|i1", "|u1"})


def pack(message: Message, about: Mapping[str, str] | None = None) -> Parcel:
    """A note, ready to travel."""
    arrays = {key: _to_file(array) for key, array in message.arrays.items()}
    halves = tuple(key for key, array in message.arrays.items() if array.dtype == torch.bfloat16)
    facts = facts_text(message.facts)
    return Parcel(facts, arrays, halves, about or {}, seal(facts, message.arrays))


def unpack(parcel: Parcel) -> Message:
    """The note in a parcel from outside.

    Raises:
        WireError: it is not exactly what `pack` makes.
    """
    facts = facts_of_text(parcel.facts)
    arrays = {}
    for key, packed in parcel.arrays.items():
        tensor = _from_file(key, packed)
        if key in parcel.bfloat16:
            if tensor.dtype != torch.int16:
                raise WireError(f"this is no note: its bfloat16 array travels as {tensor.dtype}")
            tensor = tensor.view(torch.bfloat16)
        arrays[key] = tensor
    if not set(parcel.bfloat16) <= set(arrays):
        raise WireError("this is no note: it says the type of an array that it does not have")
    message = checked(arrays, facts)
    refuse_changed(parcel.digest, parcel.facts, message.arrays)
    return message


def opened(read: Callable[[], Parcel]) -> tuple[Message, Mapping[str, str]]:
    """The note that is read, from records or a socket, and what its carriers say of it.

    Raises:
        WireError: there is none.
    """
    try:
        parcel = read()
    except (BadParcel, EOFError) as error:
        raise WireError(f"this is no note: {error}") from error
    return unpack(parcel), parcel.about


def _to_file(array: Tensor) -> Packed:
    array = array.detach().cpu().contiguous()
    values = (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).numpy()
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version=(1, 0), allow_pickle=False)
    return Packed(str(values.dtype), tuple(values.shape), file.getbuffer())


def _from_file(key: str, packed: Packed) -> Tensor:
    """The tensor in a NumPy file; nothing is allocated on the word of its header."""
    file = io.BytesIO(packed.data[: 64 * 1024])
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise WireError("this is no note: an array is a NumPy file of another version")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
        start = file.tell()
    except WireError:
        raise
    except Exception as error:  # NumPy's reader may raise anything over a damaged header
        raise WireError(f"this is no note: array {key!r} has no NumPy header") from error
    if dtype.str not in _TYPES or by_columns or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError(f"this is no note: array {key!r} is of a kind that a note does not hold")
    size = math.prod(shape) * dtype.itemsize
    if size != len(packed.data) - start:
        raise WireError(f"this is no note: array {key!r} is not as long as it says")
    values = np.frombuffer(packed.data, dtype, offset=start) if size else np.empty(0, dtype)
    try:
        return torch.from_numpy(values.reshape(shape).copy())
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise WireError(f"this is no note: array {key!r} has a shape that no array has") from error
