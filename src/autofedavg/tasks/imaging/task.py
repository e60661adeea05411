"""What tasks on images have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autofedavg.errors import ConfigError
from autofedavg.settings import setting
from autofedavg.task import Progress, Task

if TYPE_CHECKING:
    from autofedavg.tasks.imaging.collection import Collection


class GridTask(Task):
    """A task whose cases are labelled images, each on a grid of its own."""

    mirrored: tuple[str, ...] = setting(
        (),
        origin="ours: decision 39",
        help="sites whose training labels are mirrored along the first axis: bad sites, to study",
    )

    def mirrors(self, sites: Mapping[str, object]) -> set[str]:
        """Those of these sites whose training labels are mirrored.

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
        return set(self.mirrored) & set(sites)

    def named(self, data: str) -> str:
        """What the data are called, with what was done to them."""
        spoiled = f"; training labels of {', '.join(self.mirrored)} mirrored"
        return data + (spoiled if self.mirrored else "")

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
