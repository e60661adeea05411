"""What tasks on images have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from autofedavg.core.errors import ConfigError
from autofedavg.core.settings import setting
from autofedavg.tasks.base import Progress, Task

if TYPE_CHECKING:
    from autofedavg.tasks.imaging.collection import Collection


class GridTask(Task):
    """A task whose cases are labelled images, each on a grid of its own."""

    mirrored: tuple[str, ...] = setting(
        (),
        origin="ours: decision 39",
        help="sites with labels mirrored along the first axis, to study: bad sites",
    )
    mirrored_in: tuple[Literal["train", "holdout", "validation"], ...] = setting(
        ("train",),
        origin="ours: decision 39",
        help="splits of these sites whose labels are mirrored; those of test cases never are",
    )

    def mirrors(self, sites: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
        """Every one of these sites with the splits whose labels are mirrored there.

        Raises:
            ConfigError: there is no such site.
        """
        unknown = sorted(set(self.mirrored) - set(sites))
        if unknown and len(sites) > 1:  # a hospital on a real engine knows itself alone
            raise ConfigError(
                f"there is no site {', '.join(unknown)}",
                where="task.mirrored",
                remedy=f"use {', '.join(sites)}",
            )
        return {site: self.mirrored_in if site in self.mirrored else () for site in sites}

    def named(self, data: str) -> str:
        """What the data are called, with what was done to them."""
        if not self.mirrored or not self.mirrored_in:
            return data
        splits = " and ".join("training" if s == "train" else s for s in self.mirrored_in)
        return f"{data}; {splits} labels of {', '.join(self.mirrored)} mirrored"

    def collection(self, progress: Progress | None = None) -> Collection:
        """The cases as files, to be opened one at a time.

        Raises:
            DataError: there are none at hand.
        """
        raise NotImplementedError

    def outline(self) -> dict[str, Any]:
        """What `describe` says as far as it is known without a look at the images."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return self.outline()


class ImageTask(GridTask):
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
