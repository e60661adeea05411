"""The server's secret of a run, in its folder: nothing that is sent or published holds it."""

from __future__ import annotations

import os
from pathlib import Path

from autofedavg.core.errors import RunError
from autofedavg.core.seeds import Secret
from autofedavg.experiment.files import replacing

NAME = ".secret"  # hidden: neither an archive nor FLARE's download takes it along


def kept_secret(run: Path) -> Secret | None:
    """The secret that a run was begun with; None where there is none.

    Raises:
        RunError: it cannot be read.
    """
    try:
        handle = os.open(run / NAME, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            return Secret.of(file.read(100).decode("ascii").strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(
            f"the server's secret cannot be read ({error})",
            where=str(run / NAME),
            remedy="put it back from a copy; without it the rest of the run is another run's, so "
            "delete it only to start from scratch",
        ) from error


def secret_of(run: Path) -> Secret:
    """The secret of a run; a new one, for its owner's eyes only, where it has none.

    Raises:
        RunError: the one it has cannot be read.
    """
    secret = kept_secret(run)
    if secret is None:
        secret = Secret.new()
        run.mkdir(parents=True, exist_ok=True)
        with replacing(run / NAME, mode=0o600) as handle:
            handle.write(f"{secret.text}\n".encode())
    return secret
