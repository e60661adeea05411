"""Reads files of a run folder that may hold anything: plain ones, of bounded size and depth.

Folders are sent around, and a disk may fail. Whatever is in a file, a reader gets its content, or a
RunError that names the file (decision 46).
"""

from __future__ import annotations

import csv
import json
import os
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from autofedavg.core.errors import AutoFedAvgError, RunError, from_outside

SMALL = 2**24  # bytes of a JSON or TOML file, and of a line of rounds.jsonl
LARGE = 2**31  # bytes of all rounds, or of all scores, unpacked
TENSORS = 2**36  # bytes of a model
DEPTH = 32  # levels of values in values; a run writes six
REMEDY = "put it back from a copy, or leave this run out"
DAMAGE = (  # what damaged content can make Python raise
    OSError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError,
    EOFError, MemoryError, zlib.error, csv.Error,
)  # fmt: skip


@contextmanager
def naming(path: Path, what: str = "cannot be read", remedy: str = REMEDY) -> Iterator[None]:
    """Turns whatever damaged content raises into a RunError that names its file."""
    try:
        yield
    except AutoFedAvgError:
        raise
    except DAMAGE as error:
        said = from_outside(f"{type(error).__name__}: {error}")
        raise RunError(f"{what} ({said})", where=str(path), remedy=remedy) from error


def opened(path: Path) -> IO[bytes]:
    """A plain file, or one that a link leads to; a device or a pipe could be read for ever.

    Raises:
        ValueError: it is something else.
    """
    handle = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        handle.close()
        raise ValueError("not a plain file")
    return handle


def content_of(path: Path, most: int = SMALL) -> bytes:
    """All of a file.

    Raises:
        OSError, ValueError: it cannot be read, is no plain file, or is larger than `most` bytes.
    """
    with opened(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        if size > most:
            raise ValueError(f"{size} bytes are too many")
        return handle.read(size)


def unpacked(content: bytes, most: int = LARGE) -> bytes:
    """What gzip packed.

    Raises:
        EOFError, ValueError, zlib.error: it is damaged, cut, or more than `most` bytes.
    """
    unpacker = zlib.decompressobj(wbits=31)
    made = unpacker.decompress(content, most)
    if not unpacker.eof:
        raise ValueError("too much, unpacked") if unpacker.unconsumed_tail else EOFError("cut off")
    return made


def values_in(content: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError, RecursionError: it is none, or is nested too deep.
    """
    if len(content) > SMALL:
        raise ValueError(f"{len(content)} bytes are too many")
    values = json.loads(content)
    if not isinstance(values, dict):
        raise ValueError("not an object")
    if content.count(b"[") + content.count(b"{") > DEPTH:  # else it cannot be deeper
        _refuse_deep(values)
    return values


def settings_in(text: str) -> dict[str, Any]:
    """A TOML table.

    Raises:
        ValueError, RecursionError: it is none, or is nested too deep.
    """
    values = tomllib.loads(text)
    _refuse_deep(values)
    return values


def _refuse_deep(values: Any) -> None:
    level = [values]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"nested deeper than {DEPTH} levels")
