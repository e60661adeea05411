"""What a task is: settings that can be turned into a problem for a federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from torch import nn

from autofedavg.core.errors import ConfigError
from autofedavg.core.problem import Problem
from autofedavg.core.settings import Settings

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Segmentation:
    """A prediction for one image, on the image's own grid.

    Attributes:
        content: of the file to write.
        voxels: of every class, in the order of the classes.
        ml: their volume in millilitres; None where the size of a voxel is not known.
    """

    content: bytes
    voxels: tuple[int, ...]
    ml: tuple[float, ...] | None


class Segmenter(Protocol):
    """Applies a trained network to image files as they were prepared in training.

    Attributes:
        classes: their names; number k in a prediction is the k-th of them, 0 is background.
    """

    classes: tuple[str, ...]

    def ending(self, image: Sequence[Path]) -> str:
        """How the file of an image's prediction is to end; reads headers only.

        Args:
            image: one file, or several that are its channels.

        Raises:
            DataError: the model cannot be applied to this image, as far as headers tell.
        """

    def segment(self, network: nn.Module, image: Sequence[Path]) -> Segmentation:
        """The prediction for one image.

        Raises:
            DataError: the image cannot be used.
        """


class Task(Settings):
    """A frozen set of settings with one verb; subclasses add a `name` and override `problem`.

    Attributes:
        paths: names of settings that hold paths; in a study they begin at the study's folder, and
            in a deployment each site has its own.
        metric: the score by which models are chosen; higher is better.
        private_names: whether the names of cases may tell something of patients or places; such
            names do not leave a site.
    """

    paths: ClassVar[tuple[str, ...]] = ()
    metric: ClassVar[str] = "dice"
    private_names: ClassVar[bool] = True

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

    def segmenter(self) -> Segmenter:
        """What applies a trained network to new images; must not touch the training data.

        Raises:
            ConfigError: the task is not about image files.
        """
        raise ConfigError(
            "this task's model is not applied to image files",
            where=f"task {getattr(self, 'name', '')}",
            remedy="apply models of the tasks that segment images, such as datalist",
        )

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
