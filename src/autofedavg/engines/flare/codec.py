"""Messages as FLARE carries them: those with models as a DXO of arrays, all others as bytes.

A site's privacy filters work on the numpy arrays of a DXO, and FLARE streams arrays in chunks, so
models stay arrays (decision 53). The rest of such a message is in the DXO's metadata, in the
package's own serialization. It includes a digest of the arrays. A filter may change them on
purpose: FLARE's filters record that in the DXO's history, and then the digest does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from torch import Tensor

from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import (
    WireError,
    checked,
    decode,
    encode,
    refuse_changed,
    seal,
)

MESSAGE = "autofedavg_message"  # key of the bytes, in a DXO's metadata or in a Shareable


def encode_dxo(message: Message) -> Shareable:
    """Encodes a message with models, so that filters see its arrays."""
    arrays = {name: array.detach().cpu().contiguous() for name, array in message.arrays.items()}
    bfloat16 = sorted(name for name, array in arrays.items() if array.dtype == torch.bfloat16)
    header = {"facts": message.facts, "bfloat16": bfloat16, "digest": seal("", arrays)}
    # Filters of weights skip other kinds of data.
    kind = DataKind.WEIGHTS if arrays else DataKind.METRICS
    meta = {MESSAGE: encode(Message({}, header))}
    return DXO(kind, {name: _numpy(array) for name, array in arrays.items()}, meta).to_shareable()


def decode_dxo(shareable: object) -> Message:
    """Decodes what `encode_dxo` encoded.

    Raises:
        WireError: it is not a valid message.
    """
    accepted = _accepted(shareable)
    try:
        dxo = from_shareable(accepted)
    except Exception as error:
        raise WireError(f"not a valid message: {_short(error)}") from error
    meta: Mapping[Any, Any] = dxo.meta if isinstance(dxo.meta, Mapping) else {}
    header: Any = meta.get(MESSAGE)
    match decode(header).facts:
        case {"facts": dict(facts), "bfloat16": list(bfloat16), "digest": str(digest)}:
            pass
        case _:
            raise WireError("not a valid message: its header is incomplete")
    if not isinstance(dxo.data, Mapping) or not all(isinstance(name, str) for name in dxo.data):
        raise WireError("not a valid message: its arrays have no names")
    message = checked({k: _tensor(v, k in bfloat16) for k, v in dxo.data.items()}, facts)
    filtered = meta.get(MetaKey.FILTER_HISTORY)
    if not isinstance(filtered, list) or not filtered:
        refuse_changed(digest, "", message.arrays)
    return message


def encode_bytes(message: Message) -> Shareable:
    """Encodes a small message as one byte string."""
    shareable = Shareable()
    shareable[MESSAGE] = encode(message)
    return shareable


def decode_bytes(shareable: object) -> Message:
    """Decodes what `encode_bytes` encoded, or raises a WireError."""
    return decode(_accepted(shareable).get(MESSAGE))


def _accepted(shareable: object) -> Any:
    """A Shareable whose return code is OK."""
    if not isinstance(shareable, Shareable):
        raise WireError(f"not a valid message: FLARE delivered {type(shareable).__name__}")
    try:
        code = shareable.get_return_code()
    except Exception as error:
        raise WireError(f"not a valid message: unreadable headers ({_short(error)})") from error
    if code != ReturnCode.OK:
        raise WireError(f"FLARE returned {code}")
    return shareable


def _numpy(array: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as numpy has it; bfloat16, which numpy lacks, as its bits."""
    return (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).numpy()


def _tensor(array: object, bfloat16: bool) -> Tensor:
    if not isinstance(array, np.ndarray):
        raise WireError(f"not a valid message: {type(array).__name__} in place of an array")
    kind = str(array.dtype)[:80]  # the sender chooses the names of a structure's fields
    if bfloat16 and array.dtype != np.int16:
        raise WireError(f"not a valid message: {kind} cannot be bfloat16")
    try:
        # FLARE may deliver read-only memory, which torch would write to.
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise WireError(f"not a valid message: an array of type {kind}") from error
    return tensor.view(torch.bfloat16) if bfloat16 else tensor


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
