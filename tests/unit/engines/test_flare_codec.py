"""Messages as FLARE carries them: round trips, and everything else that may arrive."""

import copy
import random

import pytest

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.fuel.utils import fobs
from nvflare.private.fed.utils.fed_utils import fobs_initialize

from autofedavg.engines.flare.codec import decode_bytes, decode_dxo, encode_bytes, encode_dxo
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import TYPES, WireError, decode, encode, seal

FUZZED = 10_000

shapes = st.lists(st.integers(0, 4), max_size=3)
arrays = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(
        lambda shape, kind, seed: (
            torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 100
        ).to(kind),
        shapes,
        st.sampled_from(sorted(TYPES, key=str)),
        st.integers(0, 99),
    ),
    max_size=4,
)
HEADER = encode(Message({}, {"facts": {}, "bfloat16": [], "digest": seal("", {})}))
WHOLE = st.integers(-(2**63), 2**63 - 1)
facts = st.dictionaries(st.text(max_size=8), WHOLE | st.text(max_size=8) | st.none())


@pytest.fixture(scope="module", autouse=True)
def flare_s_own_serialisation():
    fobs_initialize()
    numpy_decomposers.register()


@given(arrays, facts)
def test_there_and_back_bit_for_bit_through_flare_s_own_bytes(arrays, facts):
    for write, read in ((encode_dxo, decode_dxo), (encode_bytes, decode_bytes)):
        sent = read(fobs.loads(fobs.dumps(write(Message(arrays, facts)))))
        assert sent.facts == facts
        assert sent.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            back = sent.arrays[name]
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            assert torch.equal(back, array)


def test_a_site_s_filters_see_weights_as_numpy_arrays():
    dxo = from_shareable(encode_dxo(Message({"values": torch.ones(3)}, {"t": 1})))
    assert dxo.data_kind == DataKind.WEIGHTS
    assert isinstance(dxo.data["values"], np.ndarray)
    assert dxo.data["values"].dtype == np.float32
    assert from_shareable(encode_dxo(Message({}, {"t": 1}))).data_kind == DataKind.METRICS


def test_what_arrived_may_be_written_into():
    message = encode_dxo(Message({"values": torch.ones(3)}))
    array = from_shareable(message).data["values"]
    array.flags.writeable = False
    decode_dxo(message).arrays["values"].add_(1)
    assert array.tolist() == [1, 1, 1]


def dxo(data: dict, header: bytes) -> Shareable:
    return DXO(DataKind.WEIGHTS, data, {"autofedavg_message": header}).to_shareable()


def rewrite(message: Shareable, **changes: object) -> None:
    """Changes the header of a message with models."""
    meta = message["DXO"]["meta"]
    header = decode(meta["autofedavg_message"]).facts | changes
    meta["autofedavg_message"] = encode(Message({}, header))


@pytest.mark.parametrize("read", [decode_dxo, decode_bytes])
@pytest.mark.parametrize(
    "message",
    [
        None,
        b"AFA1",
        {},
        Shareable(),
        make_reply(ReturnCode.EXECUTION_EXCEPTION),
        DXO(DataKind.WEIGHTS, {}).to_shareable(),
        DXO(DataKind.COLLECTION, {"a": DXO(DataKind.WEIGHTS, {})}).to_shareable(),
        DXO(DataKind.APP_DEFINED, "no table", {"autofedavg_message": HEADER}).to_shareable(),
        dxo({"v": 1.0}, HEADER),
        dxo({7: np.ones(2)}, HEADER),
        *(
            dxo({}, encode(Message({}, header)))
            for header in ({}, {"facts": {}}, {"facts": [], "bfloat16": [], "digest": ""})
        ),
    ],
)
def test_what_is_not_a_message_is_refused(read, message):
    with pytest.raises(WireError):
        read(message)


@pytest.mark.parametrize(
    "array",
    [
        np.array([None, {}], dtype=object),
        np.array(["text"]),
        np.zeros(2, dtype=">f4"),
        np.zeros(2, dtype=[("a", "f4")]),
        np.zeros(2, dtype=np.complex64),
        np.zeros(2, dtype=np.uint64),
        np.array(["2026-11-15"], dtype="datetime64[D]"),
        np.zeros(2, dtype="timedelta64[s]"),
        np.zeros(2, dtype=">i2"),
        np.zeros(2, dtype=np.int16),
        np.zeros(2, dtype=np.longdouble),
        np.zeros(2, dtype=np.bool_),
        np.zeros(2, dtype="V3"),
        np.zeros(2, dtype=[("x" * 1000, "f4", (2, 2)), ("b", "O")]),
        np.zeros((0, 2**60), dtype=">f4"),
    ],
    ids=lambda array: str(array.dtype)[:20],
)
def test_arrays_of_other_kinds_are_refused(array):
    message = encode_dxo(Message({"values": torch.ones(3)}))
    for name in ("values", "other"):
        spoilt = copy.deepcopy(message)
        spoilt["DXO"]["data"][name] = array
        with pytest.raises(WireError) as refused:
            decode_dxo(spoilt)
        assert len(str(refused.value)) < 200, "the sender's words are cut"
        if array.dtype != np.int16:
            rewrite(spoilt, bfloat16=[name])
            with pytest.raises(WireError, match="cannot be bfloat16"):
                decode_dxo(spoilt)


def test_a_flipped_bit_is_refused_unless_a_site_s_filter_says_that_it_was_there():
    """FLARE notes in a DXO which filters it went through: what they made of it counts."""

    class Clip(DXOFilter):
        def __init__(self):
            super().__init__([DataKind.WEIGHTS], None)

        def process_dxo(self, dxo, shareable, fl_ctx):
            dxo.data["values"] = np.clip(dxo.data["values"], 0, 1)
            return dxo

    sent = Message({"values": torch.arange(3.0)}, {"t": 1})
    spoilt = encode_dxo(sent)
    spoilt["DXO"]["data"]["values"] = np.array([0, 1, 2.5], np.float32)
    with pytest.raises(WireError, match="it was changed on its way: its digest differs"):
        decode_dxo(spoilt)
    filtered = Clip().process(encode_dxo(sent), FLContext())
    assert decode_dxo(filtered).arrays["values"].tolist() == [0, 1, 1]
    for message in (filtered, encode_dxo(sent)):
        flipped = fobs.loads(fobs.dumps(message))
        meta = flipped["DXO"]["meta"]
        assert b'"t": 1' in meta["autofedavg_message"]
        meta["autofedavg_message"] = meta["autofedavg_message"].replace(b'"t": 1', b'"t": 2')
        with pytest.raises(WireError, match="changed on its way"):
            decode_dxo(flipped)
        without = fobs.loads(fobs.dumps(message))
        rewrite(without, digest=None)
        with pytest.raises(WireError, match="its header is incomplete"):
            decode_dxo(without)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.int16])
@pytest.mark.parametrize("shape", [(0, 2**59), (1,) * 64, (0,) * 64, (2**59, 0, 1)], ids=str)
def test_arrays_of_odd_shapes_are_read_or_refused(shape, kind):
    message = encode_dxo(Message({"values": torch.ones(3)}))
    message["DXO"]["data"]["values"] = np.zeros(shape, kind)
    try:
        sent = decode_dxo(message)
    except WireError:
        return
    assert tuple(sent.arrays["values"].shape) == shape


JUNK = (None, -1, 2**70, float("nan"), "", "x" * 300, b"\xff", [], {}, [[]], {"a": {}}, True, {1})
JUNK_ARRAYS = (np.zeros(0), np.ones((2, 2), order="F"), np.float64(3), np.array([None]), "none")


def mutated(message: Shareable, dice: random.Random) -> object:
    """The same message with one to three things changed, anywhere in it."""
    message = copy.deepcopy(message)
    for _ in range(dice.randint(1, 3)):
        tables: list = [message]
        for table in tables:
            values = list(table.values()) if isinstance(table, dict) else list(table)
            tables += [value for value in values if isinstance(value, dict | list)]
        table = dice.choice([table for table in tables if table])
        key = dice.choice(list(table)) if isinstance(table, dict) else dice.randrange(len(table))
        match dice.randrange(5):
            case 0:
                del table[key]
            case 1 if isinstance(table, dict):
                table[dice.choice((key, "new", 7, None))] = copy.deepcopy(
                    dice.choice(JUNK + JUNK_ARRAYS)
                )
            case 2 if isinstance(table[key], bytes | str) and table[key]:
                text = table[key]
                cut = dice.randrange(len(text))
                table[key] = text[:cut] + text[cut + 1 :] if dice.random() < 0.5 else text[:cut]
            case _:
                table[key] = copy.deepcopy(dice.choice(JUNK + JUNK_ARRAYS))
        if not message:
            break
    return message


def test_ten_thousand_spoilt_messages_are_read_or_refused():
    dice = random.Random(5)
    sent = Message(
        {"values": torch.arange(6.0), "b": torch.ones(2, dtype=torch.bfloat16)},
        {"t": 3, "sites": ["A", "B"], "loss": 0.5},
    )
    whole = {decode_dxo: encode_dxo(sent), decode_bytes: encode_bytes(sent)}
    refused = turn = 0
    while turn < FUZZED:
        read = dice.choice((decode_dxo, decode_bytes))
        message: object = mutated(whole[read], dice)
        if turn % 4 == 0:  # FLARE's bytes; what FLARE cannot read never comes to us
            data = bytearray(fobs.dumps(whole[read]))
            for _ in range(dice.randint(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            try:
                message = fobs.loads(bytes(data))
            except Exception:
                continue
        turn += 1
        try:
            got = read(message)
        except WireError:
            refused += 1
            continue
        assert isinstance(got, Message)
        assert all(isinstance(array, torch.Tensor) for array in got.arrays.values())
        if read is decode_bytes:  # its digest lets nothing through that was changed
            assert got.facts == sent.facts
            assert torch.equal(got.arrays["values"], sent.arrays["values"])
    assert refused > FUZZED / 4
