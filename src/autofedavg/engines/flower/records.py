"""Parcels as the records of Flower's messages."""

from __future__ import annotations

import json
from collections import OrderedDict

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app.typing import ConfigRecordValues

from autofedavg.engines.flower.parcel import BadParcel, Packed, Parcel

NOTE, ARRAYS = "note", "arrays"
STYPE = "numpy.ndarray"


def to_records(parcel: Parcel) -> RecordDict:
    """A message's content: plain values in one record, arrays, where there are any, in another."""
    values: dict[str, ConfigRecordValues] = {
        "facts": parcel.facts,
        "bfloat16": json.dumps(list(parcel.bfloat16)),
        "digest": parcel.digest,
        **{f"about-{key}": value for key, value in parcel.about.items()},
    }
    content = RecordDict({NOTE: ConfigRecord(values)})
    if parcel.arrays:
        content[ARRAYS] = ArrayRecord(
            OrderedDict(
                (key, Array(packed.dtype, packed.shape, STYPE, bytes(packed.data)))
                for key, packed in parcel.arrays.items()
            )
        )
    return content


def from_records(content: RecordDict) -> Parcel:
    """The parcel in a message's content.

    Raises:
        BadParcel: there is none.
    """
    if not {NOTE} <= set(content) <= {NOTE, ARRAYS}:
        raise BadParcel("its records are not those of a note")
    message, record = content[NOTE], content.get(ARRAYS, ArrayRecord())
    if not isinstance(message, ConfigRecord) or not isinstance(record, ArrayRecord):
        raise BadParcel("its records are not those of a note")
    words = {key: value for key, value in message.items() if isinstance(value, str)}
    if len(words) < len(message) or not {"facts", "bfloat16", "digest"} <= set(words):
        raise BadParcel("its values are not those of a note")
    arrays = {}
    for key, array in record.items():
        if array.stype != STYPE:
            raise BadParcel("an array is written in another way than NumPy's")
        arrays[key] = Packed(array.dtype, tuple(array.shape), array.data)
    about = {key[6:]: value for key, value in words.items() if key.startswith("about-")}
    names = _names(words["bfloat16"])
    return Parcel(words["facts"], arrays, names, about, words["digest"])


def _names(text: str) -> tuple[str, ...]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadParcel("a list of names cannot be read") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadParcel("a list of names is none")
    return tuple(names)
