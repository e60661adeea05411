"""Messages as Flower's records; the bytes themselves: unit/federation/test_serialization.py."""

import pytest
import torch

pytest.importorskip("flwr", reason="needs autofedavg[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from autofedavg.engines.flower.codec import KIND, from_records, to_records
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import WireError, encode


def a_message() -> Message:
    made = torch.Generator().manual_seed(0)
    return Message(
        {
            "values": torch.randn(40, generator=made),
            "half": torch.randn(5, generator=made).bfloat16(),
            "counters/II": torch.tensor([3, 4]),
            "none": torch.zeros(0, 2),
        },
        {"t": 1, "sites": ["I", "II"], "loss": 0.25, "error": None},
    )


def test_a_message_comes_through_records():
    sent = a_message()
    got, about = from_records(to_records(sent, {"verb": "update_beta"}))
    assert about == {"verb": "update_beta"}
    assert got.facts == sent.facts
    assert got.arrays.keys() == sent.arrays.keys()
    for name, array in sent.arrays.items():
        assert got.arrays[name].dtype == array.dtype
        assert torch.equal(got.arrays[name], array)


def record_of(data: bytes, kind: str = KIND, name: str = "bytes") -> RecordDict:
    return RecordDict({"message": ArrayRecord({name: Array("uint8", (len(data),), kind, data)})})


def flipped(data: bytes) -> bytes:
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (RecordDict(), "records are of another kind"),
        (RecordDict({"message": ConfigRecord({"bytes": b"x"})}), "records are of another kind"),
        (RecordDict({"message": MetricRecord({"a": 1})}), "records are of another kind"),
        (RecordDict({"message": ArrayRecord()}), "records are of another kind"),
        (record_of(encode(a_message()), name="else"), "records are of another kind"),
        (record_of(encode(a_message()), kind="numpy.ndarray"), "not encoded by autofedavg"),
        (record_of(flipped(encode(a_message()))), "its digest differs"),
        (record_of(b""), "wrong header"),
    ],
    ids=range(8),
)
def test_what_is_no_message_is_refused(content, says):
    with pytest.raises(WireError, match=f"Not a valid message: .*{says}"):
        from_records(content)


def test_what_is_said_of_a_message_is_text():
    records = to_records(a_message(), {"site": "A"})
    records["about"]["stays"] = 1.5
    assert from_records(records)[1] == {"site": "A"}
    records["about"] = MetricRecord({"site": 1})
    assert from_records(records)[1] == {}
