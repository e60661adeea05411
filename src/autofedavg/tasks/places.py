"""Where data sets that the user downloads are looked for."""

from __future__ import annotations

import os
from pathlib import Path


def data_home(name: str) -> Path:
    """The folder of a data set: below AUTOFEDAVG_DATA, or below `data` where the command runs."""
    return Path(os.environ.get("AUTOFEDAVG_DATA") or "data") / name
