"""Both official layouts are read, nothing in them is run, and all that is wrong is told at once."""

import contextlib
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import DataError
from autofedavg.tasks.cifar import inert_pickle
from autofedavg.tasks.cifar.files import OFFICIAL_MD5, find, read
from lookalikes import (
    CIFAR_BATCHES,
    cifar10_binary,
    cifar10_python,
    cifar10_records,
    python2_pickle,
)

PIXELS = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)


def same(one, two) -> bool:
    return np.array_equal(one.images, two.images) and np.array_equal(one.labels, two.labels)


def test_binary_layout_holds_the_records_in_order(tmp_path) -> None:
    cifar10_binary(tmp_path, train=52, test=7)
    records = cifar10_records(52, 7)
    train = np.concatenate([records[batch] for batch in CIFAR_BATCHES[:5]])
    data = read(tmp_path)
    assert data.found.layout == "binary"
    assert np.array_equal(data.train.labels, train[:, 0])
    assert np.array_equal(data.train.images.reshape(52, 3072), train[:, 1:])
    assert np.array_equal(data.test.images[6, 2, 31], records["test_batch"][6, -32:])
    assert len(data.train.labels) == 52


def test_python_layout_gives_the_same_images_and_digests(tmp_path) -> None:
    cifar10_binary(tmp_path / "one")
    cifar10_python(tmp_path / "two")
    binary, python = read(tmp_path / "one"), read(tmp_path / "two")
    assert python.found.layout == "python"
    assert same(binary.train, python.train)
    assert same(binary.test, python.test)
    assert binary.md5 == python.md5
    assert binary.official() == dict.fromkeys(OFFICIAL_MD5, False)


@pytest.mark.parametrize("protocol", [3, 4])
def test_pickles_of_new_python_and_numpy_are_read_too(tmp_path, protocol) -> None:
    home = cifar10_python(tmp_path)
    before = read(tmp_path)
    for batch, records in cifar10_records(300, 40).items():
        table = {"data": records[:, 1:].copy(), "labels": records[:, 0].tolist(), b"x": None}
        (home / batch).write_bytes(pickle.dumps(table, protocol))
    assert same(before.train, read(tmp_path).train)


def test_names_of_numpy_before_and_after_its_move_are_known() -> None:
    old = python2_pickle(PIXELS, [1, 2])
    new = old.replace(b"numpy.core.multiarray", b"numpy._core.multiarray")
    for content in (old, new):
        found = inert_pickle.array_of_bytes(inert_pickle.load(content)[b"data"], 3072)
        assert np.array_equal(found, PIXELS)


def test_folder_itself_or_its_parent_may_be_named_and_binary_is_preferred(tmp_path) -> None:
    python = cifar10_python(tmp_path)
    assert find(tmp_path) == find(python)
    binary = cifar10_binary(tmp_path)
    assert find(tmp_path) == find(binary)
    assert find(tmp_path).layout == "binary"
    (binary / "test_batch.bin").unlink()
    assert find(tmp_path).layout == "python"
    assert find(tmp_path / "nowhere") is None


class Attack:
    """Runs a command when it is unpickled by anyone less careful."""

    def __init__(self, marker) -> None:
        self.command = f"touch {marker}"

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_nothing_is_run(tmp_path, protocol) -> None:
    marker = tmp_path / "marker"
    home = cifar10_python(tmp_path)
    attack = pickle.dumps({"data": Attack(marker), "labels": []}, protocol)
    (home / "data_batch_3").write_bytes(attack)
    with pytest.raises(DataError) as refused:
        read(tmp_path)
    assert not marker.exists()
    assert "data_batch_3: it " in str(refused.value)
    if protocol >= 2:
        assert f"it imports {os.system.__module__}.system" in str(refused.value)
    assert "download cifar-10-binary.tar.gz from https://www.cs.toronto.edu" in str(refused.value)
    pickle.loads(attack)  # the attack is a real one
    assert marker.exists()


def of(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"not a pickle at all",
        of(b"T", struct.pack("<i", 2**31 - 1), b"short"),
        of(b"T", struct.pack("<i", -5), b"short"),
        of(b"\x8e", struct.pack("<Q", 2**62), b"short"),
        of(b"\x95", struct.pack("<Q", 2**60)),
        of(b"Nr", struct.pack("<I", 2**31)),
        of(b"\x8b", struct.pack("<i", 2**30)),
        of(b"}}}s"),
        of(b"h\x07"),
        of(b"R"),
        of(b"\x82\x01"),
        of(b"Pid\n"),
        of(b"NQ"),
        of(b"N2"),
        of(b"(cos\nsystem\nU\x04trueo"),
        of(b"(U\x04truei", b"os\nsystem\n"),
        of(b"cnumpy\nndarray\n)\x81"),
        of(b"cnumpy\nload\nU\x04file\x85R"),
        of(b"cbuiltins\neval\nU\x011\x85R"),
        of(b"cnumpy\ndtype\n}b"),
        of(b"cnumpy\ndtype\n}U\x0c__setstate__Nsb"),
        of(b"N"),
        of(b"](K\x01e"),
        of(b"}U\x04dataNs"),
        python2_pickle(PIXELS, [1, 2])[:-40],
        python2_pickle(PIXELS, [1]),
        python2_pickle(PIXELS, [1, 10]),
        python2_pickle(PIXELS, [1, 2]).replace(b"U\x02u1", b"U\x02f4"),
        python2_pickle(PIXELS, [1, 2]).replace(b"labels", b"lapels"),
        python2_pickle(PIXELS[:, :3000], [1, 2]),
        python2_pickle(PIXELS[:0], []),
    ],
)
def test_odd_pickles_end_in_an_error_that_names_the_file(tmp_path, content) -> None:
    home = cifar10_python(tmp_path)
    (home / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match="1 of 6 files cannot be used:\n  test_batch: "):
        read(tmp_path)


@given(st.data())
def test_a_damaged_pickle_gives_values_or_a_data_error_and_nothing_else(data) -> None:
    content = bytearray(python2_pickle(PIXELS, [3, 4]))
    head = len(content) - PIXELS.size
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, head - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        inert_pickle.load(bytes(content))


@pytest.mark.parametrize(("module", "name"), list(inert_pickle.KNOWN))
def test_the_stand_ins_cannot_be_changed_by_a_file(module, name) -> None:
    stand_in = inert_pickle.KNOWN[module, name]
    before = dict(vars(stand_in))
    for state in (b"}U\x05stateK\x01s", b"N}U\x05stateK\x01s\x86"):
        with pytest.raises(DataError, match="not a valid pickle"):
            inert_pickle.load(of(f"c{module}\n{name}\n".encode(), state, b"b"))
    assert dict(vars(stand_in)) == before
    assert not hasattr(stand_in(), "__dict__")


def test_everything_wrong_in_a_binary_folder_is_told_at_once(tmp_path) -> None:
    home = cifar10_binary(tmp_path)
    (home / "data_batch_1.bin").unlink()
    (home / "data_batch_2.bin").write_bytes(bytes(3073 * 2 - 5))
    (home / "data_batch_3.bin").write_bytes(bytes(3073) + b"\x0a" + bytes(3072))
    (home / "data_batch_4.bin").write_bytes(b"")
    (home / "data_batch_5.bin").unlink()
    (home / "data_batch_5.bin").mkdir()
    with pytest.raises(DataError) as told:
        read(tmp_path)
    text = str(told.value)
    assert "5 of 6 files cannot be used" in text
    assert "data_batch_1.bin: it is missing" in text
    assert "data_batch_2.bin: its 6141 bytes are not a multiple of 3073, the size of an" in text
    assert "(the official file has 30730000)" in text
    assert "data_batch_3.bin: the label of image 1 is 10, expected 0 to 9" in text
    assert "data_batch_4.bin: it holds no image" in text
    assert "data_batch_5.bin: it cannot be read (Is a directory)" in text
    assert text.startswith(str(home))


def test_an_empty_place_says_what_to_download(tmp_path) -> None:
    with pytest.raises(
        DataError, match=r"no CIFAR-10 files found; download cifar-10-binary\.tar\.gz from"
    ):
        read(tmp_path)


def test_a_folder_that_may_not_be_read_is_told(tmp_path, monkeypatch) -> None:
    def forbidden(path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.is_file", forbidden)
    with pytest.raises(DataError, match=r"the folder cannot be read \(Permission denied\); allow"):
        find(tmp_path)


def nested_key(depth: int, twice: bool) -> bytes:
    """A dict whose key is tuples in tuples: its hash takes for ever, or all of the stack."""
    grow = b"q\x00h\x00\x86" if twice else b"\x85"  # (t, t) by way of the memo, or (t,)
    return b"\x80\x02}K\x01" + grow * depth + b"K\x02s."


@pytest.mark.parametrize(("depth", "twice"), [(60, True), (1_000_000, False)])
def test_keys_that_are_not_text_are_refused_at_once(depth, twice) -> None:
    with pytest.raises(DataError, match="names that are not text"):
        inert_pickle.load(nested_key(depth, twice))
