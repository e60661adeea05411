"""Parcels, records and frames of the Flower adapter: what is no note is refused."""

import io
import json
import random
import socket
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

pytest.importorskip("flwr", reason="needs autofedavg[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from autofedavg.engines.flower.codec import opened, pack, unpack
from autofedavg.engines.flower.parcel import BadParcel, Packed, Parcel, receive, send
from autofedavg.engines.flower.records import from_records, to_records
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import WireError

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8]


def a_note() -> Message:
    made = torch.Generator().manual_seed(0)
    return Message(
        {
            "values": torch.randn(40, generator=made),
            "beta": torch.randn(2, 3, dtype=torch.float64, generator=made),
            "half": torch.randn(5, generator=made).bfloat16(),
            "counters/II": torch.tensor([3, 4]),
            "none": torch.zeros(0, 2),
            "one": torch.tensor(2.5),
        },
        {"t": 1, "sites": ["I", "II"], "digest": "0f", "loss": 0.25, "error": None},
    )


def same(one: Message, other: Message) -> bool:
    return (
        one.facts == other.facts
        and list(one.arrays) == list(other.arrays)
        and all(
            a.dtype == b.dtype and torch.equal(a, b)
            for a, b in zip(one.arrays.values(), other.arrays.values(), strict=True)
        )
    )


def over_a_socket(write) -> Parcel:
    """What arrives when `write` has written to the other end and closed it."""
    near, far = socket.socketpair()

    def speak() -> None:
        with near:
            write(near)

    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        with far:
            far.settimeout(10)
            return receive(far)
    finally:
        speaker.join()


def framed(parcel: Parcel) -> bytes:
    written = bytearray()

    class Pen:
        sendall = staticmethod(written.extend)

    send(Pen(), parcel)
    return bytes(written)


def test_a_note_comes_through_records_and_frames():
    message = a_note()
    parcel = from_records(to_records(pack(message, {"verb": "update_beta"})))
    assert parcel.about == {"verb": "update_beta"}
    assert same(unpack(parcel), message)
    again = over_a_socket(lambda to: send(to, parcel))
    assert again.about == parcel.about
    assert same(unpack(again), message)
    assert unpack(again).arrays["half"].dtype == torch.bfloat16


@settings(max_examples=50, deadline=None)
@given(
    dtype=some.sampled_from(TYPES),
    shape=some.lists(some.integers(0, 4), max_size=3),
    name=some.text(max_size=8),
    word=some.text(max_size=20),
)
def test_every_type_shape_and_name_comes_through(dtype, shape, name, word):
    size = int(np.prod(shape)) if shape else 1
    message = Message({name: torch.arange(size).reshape(shape).to(dtype)}, {"word": word})
    assert same(unpack(from_records(to_records(pack(message)))), message)


def shaped(shape: tuple[int, ...], kind: str = "<f4", body: bytes = b"") -> bytes:
    """A NumPy file with this header."""
    return npy({"descr": kind, "fortran_order": False, "shape": shape}, body)


ODD = [(0, 2**62), (0, 2**70), (2**62, 0, 4), (1,) * 65, (0,) * 65, (True,), (False,), (2**70,)]


@pytest.mark.parametrize("shape", ODD, ids=lambda shape: str(shape)[:20])
@pytest.mark.parametrize("kind", ["<f8", "<f4", "<i2"])
def test_shapes_that_no_array_has_are_refused(shape, kind):
    body = bytes(int(kind[-1])) if 0 not in shape else b""
    with pytest.raises(WireError, match="this is no note"):
        unpack(Parcel("{}", {"a": Packed("float32", (1,), shaped(shape, kind, body))}))


def test_an_odd_header_that_changes_on_the_way_is_refused_too(monkeypatch):
    """Also by a sender who makes the digest of what he made."""
    monkeypatch.setattr("autofedavg.engines.flower.codec.refuse_changed", lambda *_: None)
    dice = random.Random(8)
    wholes = [shaped(shape, body=b"0" * 4) for shape in [*ODD, (1,), (0, 2**50)]]
    read = 0
    for _ in range(5000):
        data = dice.choice(wholes)
        data = mutated(data, dice) if dice.random() < 0.9 else data
        try:
            unpack(Parcel("{}", {"a": Packed("float32", (1,), data)}))
            read += 1
        except WireError:
            pass
    assert read > 50


def test_a_flipped_bit_is_refused():
    """On its way through Flower, the SuperNode and the socket to the worker, and back."""
    message = Message({"theta": torch.rand(3, dtype=torch.float64)}, {"loss": 0.5})
    whole = pack(message)
    assert same(unpack(of_frame(framed(from_records(to_records(whole))))), message)
    spoilt = bytearray(whole.arrays["theta"].data)
    spoilt[-2] ^= 1
    packed = replace(whole.arrays["theta"], data=bytes(spoilt))
    for parcel in (
        replace(whole, arrays={"theta": packed}),
        replace(whole, arrays={"beta": whole.arrays["theta"]}),
        replace(whole, facts='{"loss": 0.6}'),
        replace(whole, digest=""),
        replace(whole, arrays={}),
    ):
        with pytest.raises(WireError, match="it was changed on its way: its digest differs"):
            unpack(parcel)


def test_a_note_that_changes_on_the_way_is_that_note_or_refused():
    """10,000 mutated frames, 10,000 records: the note or a WireError, never anything else."""
    dice = random.Random(7)
    whole = framed(pack(a_note(), {"verb": "x"}))
    refused = 0
    for _ in range(10_000):
        data = mutated(whole, dice)
        try:
            assert same(opened(partial(of_frame, data))[0], a_note())
        except WireError:
            refused += 1
    assert refused > 6000
    records = to_records(pack(a_note()))
    for _ in range(10_000):
        try:
            changed = opened(partial(from_records, mutated_records(records, dice)))[0]
            assert same(changed, a_note())
        except WireError:
            refused += 1
    assert refused > 12_000


def of_frame(data: bytes) -> Parcel:
    class Reader:
        file = io.BytesIO(data)

        def recv(self, count: int) -> bytes:
            return self.file.read(count)

    return receive(Reader())


def mutated(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(changed))
        match dice.randrange(4):
            case 0:
                changed[at] = dice.randrange(256)
            case 1:
                del changed[at : at + dice.randint(1, 20)]
            case 2:
                changed[at:at] = dice.randbytes(dice.randint(1, 20))
            case 3:
                changed[at : at + 8] = b"99999999"
        if not changed:
            return b""
    return bytes(changed)


def mutated_records(records: RecordDict, dice: random.Random) -> RecordDict:
    message, arrays = dict(records["note"]), dict(records["arrays"])
    key = dice.choice(sorted(arrays))
    array = arrays[key]
    match dice.randrange(7):
        case 0:
            arrays[key] = Array(array.dtype, array.shape, array.stype, mutated(array.data, dice))
        case 1:
            message["facts"] = mutated(message["facts"].encode(), dice).decode(errors="replace")
        case 2:
            message["bfloat16"] = dice.choice(
                ['["values"]', '["lost"]', "[1]", "{", "null", '[["a"]]']
            )
        case 3:
            message[dice.choice(["facts", "bfloat16", "else"])] = dice.choice(
                [1, 2.5, b"x", [1, 2]]
            )
        case 4:
            del message[dice.choice(["facts", "bfloat16", "digest"])]
        case 5:
            arrays[key] = Array("float32", (1,), "torch.Tensor", array.data)
        case 6:
            other = dice.choice([ConfigRecord({}), MetricRecord({"a": 1})])
            return RecordDict({dice.choice(["note", "arrays", "else"]): other})
    return RecordDict({"note": ConfigRecord(message), "arrays": ArrayRecord(arrays)})


def npy(header: dict | str, body: bytes = b"") -> bytes:
    text = (header if isinstance(header, str) else repr(header)).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (npy({"descr": "<f8", "fortran_order": False, "shape": (10**12,)}), "not as long"),
        (npy({"descr": "<f8", "fortran_order": False, "shape": (-1,)}, b"0" * 8), "kind|header"),
        (npy({"descr": "<f8", "fortran_order": True, "shape": (1, 1)}, b"0" * 8), "kind"),
        (npy({"descr": ">f8", "fortran_order": False, "shape": (1,)}, b"0" * 8), "kind"),
        (npy({"descr": "|O", "fortran_order": False, "shape": (1,)}, b"0" * 8), "kind"),
        (npy({"descr": "<i2", "fortran_order": False, "shape": (1,)}, b"00"), "type"),
        (npy("__import__('os').system('false')"), "header"),
        (b"\x93NUMPY\x02\x00" + b"\0" * 100, "version"),
        (b"", "header"),
    ],
)
def test_arrays_that_are_none_are_refused_before_memory_is_taken(data, says):
    with pytest.raises(WireError, match=says):
        unpack(Parcel("{}", {"a": Packed("float64", (1,), data)}))


def test_a_frame_that_promises_too_much_ends_with_what_came():
    head = json.dumps(
        {
            "about": {},
            "facts": "{}",
            "bfloat16": [],
            "digest": "",
            "arrays": [["a", "f", [1], 2**39]],
        }
    ).encode()
    data = b"AFP1" + len(head).to_bytes(8, "big") + head + b"only this"
    with pytest.raises(EOFError):
        of_frame(data)
    with pytest.raises(BadParcel, match="begin"):
        of_frame(b"AFP1" + (2**40).to_bytes(8, "big"))
