"""What tasks on image files have in common."""

from __future__ import annotations

from autofedavg.settings import setting
from autofedavg.task import Task


class ImageTask(Task):
    """A task whose cases are prepared into the cache."""

    hold: float = setting(
        8.0,
        origin="ours",
        help="GiB of prepared cases held in memory; the rest is read from disk as it is needed",
        ge=0,
    )
    cache: str = setting(
        "", origin="ours", help="folder for prepared cases; the user's cache folder when empty"
    )
