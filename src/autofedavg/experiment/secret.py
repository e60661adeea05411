"""The server's secret of a run, in its folder: nothing that is sent or published holds it."""

from __future__ import annotations

import os
from pathlib import Path

from autofedavg.core.errors import RunError
from autofedavg.core.seeds import Secret

NAME = ".secret"  # hidden: neither an archive nor FLARE's download takes it along


def kept_secret(run: Path) -> Secret | None:
    """The secret that a run was begun with; None where there is none.

    Raises:
        RunError: it cannot be read.
    """
    try:
        handle = os.open(run / NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(run, error) from error
    with os.fdopen(handle, "rb") as file:
        try:
            return Secret.of(file.read(100).decode("ascii").strip())
        except ValueError as error:
            raise _unreadable(run, error) from error


def secret_of(run: Path) -> Secret:
    """The secret of a run; a new one, for its owner's eyes only, where it has none.

    Raises:
        RunError: the one it has cannot be read.
    """
    known = kept_secret(run)
    if known is not None:
        return known
    made = Secret.new()
    run.mkdir(parents=True, exist_ok=True)
    partial = run / f"{NAME}.{os.getpid()}.part"
    partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(f"{made.text}\n".encode())
        file.flush()
        os.fsync(handle)
    partial.replace(run / NAME)
    return made


def _unreadable(run: Path, error: Exception) -> RunError:
    return RunError(
        f"the server's secret cannot be read ({error})",
        where=str(run / NAME),
        remedy="put it back from a copy; without it the rest of the run is another run's, so "
        "delete it only to begin anew",
    )
