"""What a test's code has written to the disk, in order: the first tier itself waits for no disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def synced_to(patch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """A list that grows with every fsync: name and content, of a folder no content."""
    found: list[tuple[str, bytes]] = []

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        found.append((path.name, b"" if path.is_dir() else path.read_bytes()))

    patch.setattr(os, "fsync", fsync)
    return found
