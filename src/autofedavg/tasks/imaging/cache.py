"""Where data lies and where prepared data is kept."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autofedavg.core.errors import DataError


def is_folder(path: Path) -> bool:
    """Whether there is such a folder, as far as one may look."""
    try:
        return path.is_dir()
    except PermissionError:
        return False


def data_home(name: str = "") -> Path:
    """Where public data is looked for: AUTOFEDAVG_DATA, or the folder `data`, and `name` in it."""
    return Path(os.environ.get("AUTOFEDAVG_DATA") or "data") / name


def cache_home() -> Path:
    """Where generated and prepared data is kept: AUTOFEDAVG_CACHE, or the user's cache folder.

    Raises:
        DataError: the user has no home; a folder that all may write would be no place to trust.
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


def name_the_user() -> None:
    """Gives a user without an entry in the password file a name, as in many containers.

    MONAI asks for one when it is imported, and would end there.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):  # the second from Python 3.13 on
        os.environ["USER"] = f"uid-{os.getuid()}"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A disk that is full or cannot be written as a DataError that says what to do.

    Raises:
        DataError: something could not be written.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"prepared cases cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="make room there, or set task.cache or AUTOFEDAVG_CACHE",
        ) from error
