"""The folders of public data and of prepared data."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
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

    Raises:
        DataError: the user has no home; a folder that all may write cannot be trusted.
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
    """Names a user without an entry in the password file, as in many containers.

    MONAI asks for the name when it is imported, and would fail.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):  # the second from Python 3.13 on
        os.environ["USER"] = f"uid-{os.getuid()}"


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
