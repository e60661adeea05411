"""Where data lies and where prepared data is kept."""

from __future__ import annotations

import os
from pathlib import Path


def data_home(name: str = "") -> Path:
    """Where public data is looked for: AUTOFEDAVG_DATA, or the folder `data`, and `name` in it."""
    return Path(os.environ.get("AUTOFEDAVG_DATA") or "data") / name


def cache_home() -> Path:
    """Where generated and prepared data is kept: AUTOFEDAVG_CACHE, or the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("AUTOFEDAVG_CACHE") or Path(home) / "autofedavg")
