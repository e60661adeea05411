"""What a task is: settings that can be turned into a problem for a federation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

from torch import nn

from autofedavg.client import Problem
from autofedavg.errors import ConfigError
from autofedavg.settings import Settings

Progress = Callable[[str, int, int], None]


class Task(Settings):
    """A frozen set of settings with one verb; subclasses add a `name` and override `problem`.

    Attributes:
        paths: names of settings that hold paths; in a study they begin at the study's folder.
    """

    paths: ClassVar[tuple[str, ...]] = ()

    def resolved(self, progress: Progress | None = None) -> Self:
        """A copy with every setting worked out that was left to the data."""
        return self

    def check(self) -> None:
        """Refuses, before any work, what could not be run: a split that cannot be made, say."""

    def problem(self, progress: Progress | None = None) -> Problem:
        """Prepares the data (once; kept in a cache) and returns what is to be learned.

        Args:
            progress: called with (what, done, total) during long work.
        """
        raise NotImplementedError

    def site_names(self) -> list[str]:
        """The sites, without touching their data."""
        raise NotImplementedError

    def has(self, split: str) -> bool:
        """Whether a split has cases, as far as the settings tell."""
        return split != "holdout" or bool(getattr(self, "holdout", 0))

    def network(self) -> nn.Module:
        """The network, without touching the data."""
        raise NotImplementedError

    def preprocessing(self) -> dict[str, Any]:
        """How inputs are made and outputs are read, in plain values, without touching the data.

        `input` has at least `name`, `shape` (batch, channels, sizes; None for any) and
        `multiple_of`: what each size is a multiple of, None where sizes are fixed. `output` has
        `name` and `classes`, in the order of the network's outputs.
        """
        raise ConfigError(
            "this task does not say how its inputs are made",
            where=f"task {type(self).__name__}",
            remedy="give it a method preprocessing",
        )

    def memory(self) -> int:
        """Bytes of prepared data that will be held."""
        raise NotImplementedError

    def where(self) -> str:
        """Where the data is, or what is to be done to have it, in one line."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What `environment.json` records of the data: cases per site, hash of the split."""
        raise NotImplementedError

    def about(self) -> str:
        """What data this is, where to get it, under which licence, and where to put it."""
        return self.where()

    def verify(self, progress: Progress | None = None) -> list[str]:
        """What is there, in lines for people.

        Raises:
            DataError: something is missing or unfit; everything is listed.
        """
        return [self.where()]

    def prepare(self, progress: Progress | None = None) -> None:
        """Puts everything into the cache, so that runs begin at once."""
        self.problem(progress)
