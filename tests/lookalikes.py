"""Small generated data in the layouts of real data sets, with something in it to learn."""

import struct
from pathlib import Path

import numpy as np

CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def cifar10_records(train: int, test: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Batch -> (N, 3073) records; each class has a coarse pattern of its own under noise."""
    random = np.random.default_rng(seed)
    patterns = random.integers(40, 216, size=(10, 3, 4, 4)).repeat(8, axis=2).repeat(8, axis=3)
    sizes = [len(part) for part in np.array_split(np.arange(train), 5)] + [test]
    batches = {}
    for batch, size in zip(CIFAR_BATCHES, sizes, strict=True):
        labels = random.integers(10, size=size)
        images = patterns[labels] + random.integers(-40, 41, size=(size, 3, 32, 32))
        batches[batch] = np.concatenate(
            [labels[:, None], images.reshape(size, 3072)], axis=1
        ).astype(np.uint8)
    return batches


def cifar10_binary(folder: Path, train: int = 300, test: int = 40, seed: int = 0) -> Path:
    """The official binary folder, smaller."""
    home = folder / "cifar-10-batches-bin"
    home.mkdir(parents=True)
    for batch, records in cifar10_records(train, test, seed).items():
        (home / f"{batch}.bin").write_bytes(records.tobytes())
    return home


def cifar10_python(folder: Path, train: int = 300, test: int = 40, seed: int = 0) -> Path:
    """The official python folder, smaller: the same images as `cifar10_binary` of the seed."""
    home = folder / "cifar-10-batches-py"
    home.mkdir(parents=True)
    for batch, records in cifar10_records(train, test, seed).items():
        (home / batch).write_bytes(python2_pickle(records[:, 1:], records[:, 0].tolist()))
    return home


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """What Python 2's cPickle wrote of {"data": array, "labels": list}, instruction by instruction.

    Python 3 cannot write Python 2's strings, so its own pickles would not be the official layout.
    """
    rows, columns = pixels.shape
    kind = b"cnumpy\ndtype\n" + _text(b"u1") + b"K\x00K\x01\x87R(K\x03" + _text(b"|")
    kind += b"NNN" + _number(-1) + _number(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _text(b"b")
    array += b"\x87R(K\x01" + _number(rows) + _number(columns) + b"\x86" + kind + b"\x89"
    array += b"T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    table = _text(b"batch_label") + _text(b"training batch 1 of 5")
    table += _text(b"labels") + listed + _text(b"data") + array
    return b"\x80\x02}q\x01(" + table + b"u."


def _text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)
