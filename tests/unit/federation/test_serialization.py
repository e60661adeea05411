"""Messages as bytes, and ten thousand inputs that are none."""

import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import (
    MAGIC,
    MOST_FACTS,
    WireError,
    checked,
    decode,
    encode,
    facts_of_text,
    facts_text,
    not_sent,
    refuse_changed,
    seal,
)

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    facts=st.dictionaries(st.text(), JSON, max_size=4),
    sizes=st.dictionaries(st.text(min_size=1), st.integers(0, 5), max_size=4),
    kind=st.sampled_from(TYPES),
)
def test_a_message_arrives_as_it_was_sent(facts, sizes, kind):
    sizes.pop("__metadata__", None)
    message = Message({name: torch.ones(size, 2).to(kind) for name, size in sizes.items()}, facts)
    back = decode(encode(message))
    assert back.facts == message.facts
    assert back.arrays.keys() == message.arrays.keys()
    for name, array in message.arrays.items():
        assert back.arrays[name].dtype == kind
        assert torch.equal(back.arrays[name], array)


def test_ten_thousand_spoilt_messages_are_refused():
    """Each is refused; only one that came out unspoilt may be read."""
    dice = random.Random(5)
    whole = encode(
        Message({"beta": torch.rand(3, dtype=torch.float64)}, {"t": 1, "s": 2, "x": "é"})
    )
    refused = 0
    for _ in range(10_000):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            match dice.randrange(5):
                case 0 if data:
                    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
                case 1:
                    del data[dice.randrange(len(data) + 1) :]
                case 2:
                    data[:0] = dice.randbytes(dice.randint(1, 9))
                case 3:
                    data += dice.randbytes(dice.randint(1, 9))
                case _:
                    at = dice.randrange(len(data) + 1)
                    data[at : at + 8] = dice.randbytes(8)
        try:
            message = decode(bytes(data))
        except WireError:
            refused += 1
        else:
            assert bytes(data) == whole, message
    assert refused > 9_990


@pytest.mark.parametrize("junk", [None, 3, "text", b"", MAGIC, [], {}], ids=repr)
def test_what_is_no_message_is_refused(junk):
    with pytest.raises(WireError, match="Not a valid message"):
        decode(junk)


def sealed(facts: bytes, tensors: bytes = b"") -> bytes:
    """A message with a true digest and whatever is inside."""
    import hashlib

    rest = len(facts).to_bytes(8, "big") + facts + tensors
    return MAGIC + hashlib.blake2b(rest, digest_size=16).digest() + rest


def tensors(shape: list[int], kind: str = "F32", ends: int = 0) -> bytes:
    """A safetensors file with this header."""
    head = {"values": {"dtype": kind, "shape": shape, "data_offsets": [0, ends]}}
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + bytes(ends)


HOLLOW = [[0, 2**62, 4], [0, 2**62], [0, 2**63], [0, 2**64 - 1], [2**32, 0, 2**32, 2**32]]


@pytest.mark.parametrize("shape", HOLLOW, ids=str)
@pytest.mark.parametrize("kind", ["F32", "BF16", "I64", "U8"])
def test_no_shape_breaks_the_reader(shape, kind):
    """Nothing is in such a tensor; its strides are beyond all numbers."""
    try:
        message = decode(sealed(b"{}", tensors(shape, kind)))
    except WireError:
        return
    assert list(message.arrays["values"].shape) == shape


def test_strides_beyond_all_numbers_are_refused():
    with pytest.raises(WireError, match="tensors cannot be read"):
        decode(sealed(b"{}", tensors([0, 2**62, 4])))


def test_ten_thousand_messages_spoilt_before_they_were_sealed():
    """Their digest is true, so all of their inside is read: a message or a WireError."""
    dice = random.Random(6)
    facts = [b'{"t": 1, "loss": 0.5, "x": "\\u00e9\\ud83d\\ude00", "scores": [["a", "dice", 1]]}']
    facts += [b'{"x": "\\ud800"}', b'{"t": ' + b"9" * 400 + b"}", b'{"t": 1e999}']
    files = [tensors([2, 3], "F32", 24), tensors([4], "BF16", 8)]
    files += [tensors(shape) for shape in HOLLOW]
    read = 0
    for _ in range(10_000):
        parts = [bytearray(dice.choice(facts)), bytearray(dice.choice(files))]
        part = dice.choice(parts)
        for _ in range(dice.randint(0, 3)):
            at = dice.randrange(len(part))
            match dice.randrange(3):
                case 0:
                    part[at] ^= 1 << dice.randrange(8)
                case 1:
                    part[at : at + 1] = dice.choice(
                        [b"0", b"9" * 19, b"-1", b"\\ud83d", b"\xed\xa0\x80"]
                    )
                case _:
                    part[at : at + 2] = b""
        try:
            message = decode(sealed(*map(bytes, parts)))
        except WireError:
            continue
        read += 1
        assert encode(Message({}, message.facts)), "what was read can be said again"
        json.dumps(message.facts, ensure_ascii=False).encode()
    assert read > 200


@pytest.mark.parametrize(
    "text",
    [
        r'{"site": "\ud800"}',
        r'{"\uDFFF": 1}',
        r'{"a": [{"b": "x\ude00\ud83d"}]}',
        '{"site": "\ud800"}',
        b'{"site": "\xed\xa0\x80"}',
        '{"site": "\ud800"}'.encode("utf-16", "surrogatepass"),
    ],
    ids=ascii,
)
def test_text_that_no_encoding_can_carry_is_refused(text):
    with pytest.raises(WireError, match="not JSON"):
        facts_of_text(text)


@pytest.mark.parametrize("number", ["9" * 400, str(2**63), str(-(2**63) - 1), "9" * 5000, "1e999"])
def test_numbers_beyond_all_use_are_refused(number):
    with pytest.raises(WireError, match="not JSON"):
        facts_of_text('{"a": [{"t": NUMBER}]}'.replace("NUMBER", number))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0, 1e300])
def test_numbers_at_the_bounds_are_taken(number):
    assert facts_of_text(facts_text({"t": number})) == {"t": number}


def test_whole_pairs_of_surrogates_are_one_letter():
    assert facts_of_text(r'{"x": "\ud83d\ude00 \\ud800"}') == {"x": "\U0001f600 \\ud800"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (sealed(b"[]"), "not a JSON object"),
        (sealed(b"{"), "not JSON"),
        (sealed(b'{"loss": NaN}'), "NaN is not a number"),
        (sealed(b"[" * 100_000), "not JSON"),
        (sealed(b"{}", b"no tensors"), "tensors cannot be read"),
        (sealed(b"\xff{}"), "not JSON"),
    ],
)
def test_a_true_digest_does_not_make_it_a_message(data, says):
    with pytest.raises(WireError, match=says):
        decode(data)


def test_a_length_beyond_the_end_is_refused():
    import hashlib

    rest = (2**40).to_bytes(8, "big") + b"{}"
    with pytest.raises(WireError, match="cut off"):
        decode(MAGIC + hashlib.blake2b(rest, digest_size=16).digest() + rest)


@pytest.mark.parametrize(
    "arrays",
    [
        None,
        [],
        {1: torch.ones(1)},
        {"a": 1},
        {"a": torch.ones(1, dtype=torch.complex64)},
        {"a": torch.ones(2).to_sparse()},
    ],
    ids=str,
)
def test_only_tensors_that_a_message_may_hold_are_taken(arrays):
    with pytest.raises(WireError, match="Not a valid message"):
        checked(arrays, {})


@pytest.mark.parametrize(
    "text", ['{"t": 1, "t": 2}', '{"a": {"b": 1, "b": 1}}', '{"a": [{"": 0, "": 0}]}']
)
def test_a_table_with_a_name_twice_is_refused(text):
    with pytest.raises(WireError, match="a name occurs twice in a table"):
        facts_of_text(text)


def test_values_are_bounded():
    with pytest.raises(WireError, match="not a text of at most"):
        facts_of_text("x" * (MOST_FACTS + 1))
    with pytest.raises(ValueError, match="Out of range"):
        facts_text({"loss": float("nan")})


def test_a_digest_over_separate_values_and_tensors():
    arrays = {"a": torch.ones(2), "none": torch.zeros(0, 3)}
    digest = seal("{}", arrays)
    refuse_changed(digest, "{}", dict(reversed(arrays.items())))
    others = (
        {**arrays, "a": torch.zeros(2)},
        {"a": arrays["a"]},
        {**arrays, "a": torch.ones(2, 1)},
    )
    for facts, changed in [("{ }", arrays), *(("{}", other) for other in others)]:
        with pytest.raises(WireError, match="it was changed on its way: its digest differs"):
            refuse_changed(digest, facts, changed)
    with pytest.raises(WireError, match="its digest differs"):
        refuse_changed(None, "{}", arrays)


def test_a_reply_that_cannot_be_encoded_is_replaced():
    said = not_sent("evaluate\x1b", ValueError("/home/anna/case-1.nii")).facts["error"]
    assert said.startswith("its answer to evaluate")
    assert said.endswith("cannot be sent (ValueError); see its own log")
