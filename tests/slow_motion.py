"""A run that rests while a test looks at what is shown of it: it would keep a core busy."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def rounds_of(folder: Path) -> int:
    """How many rounds a run folder has."""
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def resting(run: subprocess.Popen[str], folder: Path, rounds: int) -> Iterator[None]:
    """Stops a run that has so many rounds, and lets it continue at the end."""
    while rounds_of(folder) < rounds:
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    run.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        run.send_signal(signal.SIGCONT)
