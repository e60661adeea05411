"""Whether a process works in a run folder, as its lock says."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Literal

from autofedavg.experiment.files import opened

Lock = Literal["held", "free", "unknown"]


def lock_of(folder: Path) -> Lock:
    """Whether a process works in a run folder: asks for a shared lock and returns it at once.

    Unlike a process number or a heartbeat, the kernel's lock ends with its process, also by
    `kill -9`. A run that wants the folder at this very moment tries again (`RunFolder.lock`).
    """
    try:
        with opened(folder / ".lock") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return "free"
    except BlockingIOError:
        return "held"
    except (OSError, ValueError):  # a file system without locks, or not a file
        return "unknown"
    return "free"
