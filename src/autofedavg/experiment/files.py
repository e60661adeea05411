"""Files of a run folder as they are opened: plain ones, and for writing never through a link.

A run folder may come from anywhere. What is written into it must not end up elsewhere.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from autofedavg.core.errors import RunError

_PART = re.compile(r".+\.[0-9a-f]{8}\.part")  # what `replacing` writes before it renames


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
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Removes what `replacing` left of a process that was killed; for who alone writes here."""
    for path in [*folder.iterdir()] if folder.is_dir() else ():
        if _PART.fullmatch(path.name):
            path.unlink(missing_ok=True)
