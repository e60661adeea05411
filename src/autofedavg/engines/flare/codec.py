"""Notes as FLARE carries them.

A note with a model is a DXO of weights in numpy arrays, which is what a site's own filters know;
FLARE sends arrays in pieces and without pickle. A small note is one byte string.

Both carry a digest. A filter may change arrays on their way, and FLARE's filters say so in the
DXO's history: then the arrays are what the filter made of them, and only the values are checked.
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
    facts_of_text,
    facts_text,
    refuse_changed,
    seal,
)

FACTS = "autofedavg_facts"  # in a DXO's meta
BRAIN_FLOATS = "autofedavg_bfloat16"  # names of arrays that are bfloat16, as bits: numpy has none
SEALS = "autofedavg_digests"  # of the values and of the arrays, as they were handed over
LETTER = "autofedavg_note"


def as_weights(note: Message) -> Shareable:
    """A note with models, so that filters see its arrays."""
    arrays = {name: array.detach().cpu().contiguous() for name, array in note.arrays.items()}
    brain = sorted(name for name, array in arrays.items() if array.dtype == torch.bfloat16)
    # Filters of weights leave a note without any alone: it is of another kind.
    kind = DataKind.WEIGHTS if arrays else DataKind.METRICS
    facts = facts_text(note.facts)
    meta = {FACTS: facts, BRAIN_FLOATS: brain, SEALS: [seal(facts, {}), seal("", arrays)]}
    return DXO(kind, {name: _numpy(array) for name, array in arrays.items()}, meta).to_shareable()


def of_weights(message: object) -> Message:
    """The note in a DXO.

    Raises:
        WireError: there is none in it.
    """
    content = _content(message)
    try:
        dxo = from_shareable(content)
    except Exception as error:
        raise WireError(f"this is no note: {_said(error)}") from error
    meta = dxo.meta if isinstance(dxo.meta, Mapping) else {}
    facts = facts_of_text(meta.get(FACTS))
    brain = meta.get(BRAIN_FLOATS)
    if not isinstance(brain, list | tuple) or not all(isinstance(name, str) for name in brain):
        raise WireError("this is no note: the types of its arrays are not told")
    if not isinstance(dxo.data, Mapping):
        raise WireError("this is no note: its arrays are no table")
    note = checked({k: _tensor(v, k in brain) for k, v in dxo.data.items() if _named(k)}, facts)
    seals = meta.get(SEALS)
    if not isinstance(seals, list | tuple) or len(seals) != 2:
        raise WireError("this is no note: it carries no digests")
    refuse_changed(seals[0], meta[FACTS], {})
    filtered = meta.get(MetaKey.FILTER_HISTORY)
    if not isinstance(filtered, list) or not filtered:
        refuse_changed(seals[1], "", note.arrays)
    return note


def as_letter(note: Message) -> Shareable:
    """A small note, as one byte string."""
    message = Shareable()
    message[LETTER] = encode(note)
    return message


def of_letter(message: object) -> Message:
    """The note in a small message.

    Raises:
        WireError: there is none in it.
    """
    return decode(_content(message).get(LETTER))


def _content(message: object) -> Any:
    """The message, if the other side says that all is well with it."""
    if not isinstance(message, Shareable):
        raise WireError(f"this is no note: FLARE handed over {type(message).__name__}")
    try:
        code = message.get_return_code()
    except Exception as error:
        raise WireError(f"this is no note: its headers cannot be read ({_said(error)})") from error
    if code != ReturnCode.OK:
        raise WireError(f"FLARE says {code}")
    return message


def _numpy(array: Tensor) -> np.ndarray[Any, Any]:
    return (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).numpy()


def _named(name: object) -> bool:
    if not isinstance(name, str):
        raise WireError("this is no note: an array has no name")
    return True


def _tensor(array: object, brain: bool) -> Tensor:
    if not isinstance(array, np.ndarray):
        raise WireError(f"this is no note: {type(array).__name__} stands where an array should")
    if brain and array.dtype != np.int16:
        raise WireError(f"this is no note: {_kind(array)} cannot be bfloat16")
    try:
        # What FLARE received may be read-only memory, which torch would not keep to.
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise WireError(f"this is no note: an array of type {_kind(array)}") from error
    return tensor.view(torch.bfloat16) if brain else tensor


def _kind(array: np.ndarray[Any, Any]) -> str:
    return str(array.dtype)[:80]  # the names of a structure's fields are the sender's


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
