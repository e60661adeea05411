"""The folders of public data and of prepared data."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autofedavg.core.errors import DataError


def is_folder(path: Path) -> bool:
    """Whether there is such a folder that may be read."""
    try:
        return path.is_dir()
    except PermissionError:
        return False


def data_home(name: str = "") -> Path:
    """The folder of public data: `name` in AUTOFEDAVG_DATA, or in the folder `data`."""
    return Path(os.environ.get("AUTOFEDAVG_DATA") or "data") / name


def cache_home() -> Path:
    """The folder of generated and prepared data: AUTOFEDAVG_CACHE, or the user's cache folder.

    Raises DataError for a user without a home: a folder that all may write cannot be trusted.
    """
    if own := os.environ.get("AUTOFEDAVG_CACHE"):
        return Path(own)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise DataError(
            "this user has no home folder to keep prepared cases in",
            where=f"user {os.getuid()}",
            remedy="set AUTOFEDAVG_CACHE, or task.cache, to a folder that only this user may write",
        ) from error
    return home / "autofedavg"


def unfinished(path: Path) -> Path:
    """The hidden name under which this thread writes a file or folder before it is renamed."""
    return path.with_name(
        f".{path.name}-{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    )


@contextmanager
def new_folder(place: Path, complete: Callable[[Path], bool]) -> Iterator[Path]:
    """A folder to write, renamed to `place` at the end: others see all of it or nothing.

    An error is ignored if another process has finished the same folder meanwhile.
    """
    making = unfinished(place)
    try:
        making.mkdir(parents=True)
        yield making
        if place.exists() and not complete(place):  # left behind by a power cut
            shutil.rmtree(place, ignore_errors=True)
        making.rename(place)
    except OSError:
        if not complete(place):
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


@contextmanager
def writing(folder: Path, what: str = "prepared cases") -> Iterator[None]:
    """Raises a DataError that says what to do if a disk is full or cannot be written."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{what} cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="free some space there, or set task.cache or AUTOFEDAVG_CACHE",
        ) from error
