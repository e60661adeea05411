"""Files of a run folder, which may come from anywhere: read with bounds, written through no link.

Folders are sent around, and a disk may fail. Whatever is in a file, a reader gets its content, or a
RunError that names the file (decision 46). What is written must not end up elsewhere.
"""

from __future__ import annotations

import csv
import errno
import json
import lzma
import os
import re
import secrets
import stat
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from autofedavg.core.errors import AutoFedAvgError, RunError, from_outside

SMALL = 2**24  # bytes of a JSON or TOML file, and of a line of rounds.jsonl
LARGE = 2**31  # bytes of all rounds, or of all scores, unpacked
TENSORS = 2**36  # bytes of a model
DEPTH = 32  # levels of values in values; a run writes six
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ANOTHER = "name another folder with --out"
REMEDY = "put it back from a copy, or leave this run out"
DAMAGE = (  # what damaged content can make Python raise
    OSError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError,
    EOFError, MemoryError, NotImplementedError, zlib.error, csv.Error, lzma.LZMAError,
    zipfile.BadZipFile,
)  # fmt: skip
_PART = re.compile(r".+\.[0-9a-f]{8}\.part")  # what `replacing` writes before it renames


@contextmanager
def naming(path: Path, what: str = "cannot be read", remedy: str = REMEDY) -> Iterator[None]:
    """Turns whatever damaged content raises into a RunError that names its file."""
    try:
        yield
    except AutoFedAvgError:
        raise
    except DAMAGE as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        said = from_outside(f"{kind}{error}")
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


def opened_here(path: Path, flags: int) -> int:
    """A descriptor of a plain file, made if need be, that lies in this very folder.

    Raises:
        RunError: a link, a device or a folder lies there.
    """
    try:
        # Not blocking: a pipe without a reader would keep us waiting.
        descriptor = os.open(
            path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
        )
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK):
            raise _not_plain(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path)
    return descriptor


def _not_plain(path: Path) -> RunError:
    return RunError(
        "this is a link or no plain file, and would be written to",
        where=str(path),
        remedy="remove it, if you trust the rest of the folder",
    )


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A new file that takes another one's place once it is whole and on disk, or not at all."""
    # A name nobody can know before, and only if nothing is there: no link leads it elsewhere.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, mode), "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Makes the folder of an --out, or one below it, with those above it.

    Raises:
        OSError: the disk is full.
        RunError: it cannot be made, for instance because a file has its name.
    """
    refuse_file(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise _no_folder(path, error) from error


def refuse_file(path: Path) -> None:
    """Refuses a path that cannot be a folder, before any work; makes nothing.

    Raises:
        RunError: it names the file that is in the way.
    """
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError as error:  # to be made, if no link that leads nowhere is in the way
        if path.is_symlink():
            raise _no_folder(path, error) from error
        return
    except OSError as error:
        raise _no_folder(path, error) from error
    if not is_folder:
        raise _no_folder(path)


def _no_folder(path: Path, error: OSError | None = None) -> RunError:
    for place in (path, *path.parents):
        with suppress(OSError):  # a name that is too long, or a folder that is closed to us
            if place.is_symlink() and not place.exists():
                return RunError("this link leads nowhere", where=str(place), remedy=ANOTHER)
            if place.exists() and not place.is_dir():
                return RunError("this is a file", where=str(place), remedy=ANOTHER)
    why = f" ({error.strerror})" if error else ""
    return RunError(f"this folder cannot be made{why}", where=str(path), remedy=ANOTHER)


def sync_folder(folder: Path) -> None:
    """Writes a folder's names to the disk: those of new files outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Removes what `replacing` left of a process that was killed; for who alone writes here."""
    for path in [*folder.iterdir()] if folder.is_dir() else ():
        if _PART.fullmatch(path.name):
            path.unlink(missing_ok=True)
