"""The base class of tasks: settings that define a problem for a federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor, nn

from autofedavg.core.errors import ConfigError
from autofedavg.core.problem import Problem
from autofedavg.core.settings import Settings
from autofedavg.core.trainer import Batch

Progress = Callable[[str, int, int], None]  # (what, done, total), called during long work


@dataclass(frozen=True)
class Segmentation:
    """A prediction for one image, on the image's own grid.

    Attributes:
        content: of the file to write.
        voxels: of every class, in the order of the classes.
        ml: their volume in millilitres; None where the size of a voxel is unknown.
    """

    content: bytes
    voxels: tuple[int, ...]
    ml: tuple[float, ...] | None


class Segmenter(Protocol):
    """Applies a trained network to image files, prepared as in training.

    An image is one file, or several that are its channels.

    Attributes:
        classes: their names; number k in a prediction is the k-th of them, 0 is background.
    """

    classes: tuple[str, ...]

    def ending(self, image: Sequence[Path]) -> str:
        """The suffix of an image's prediction; raises DataError if its header does not fit."""

    def segment(self, network: nn.Module, image: Sequence[Path]) -> Segmentation:
        """The prediction for one image; raises DataError if the image cannot be used."""


class Task(Settings):
    """Frozen settings of a task; subclasses add a `name` and implement `problem`.

    Attributes:
        paths: names of settings that hold paths. In a study they are relative to its folder, and
            in a deployment each site has its own.
        metric: the score by which models are selected; higher is better.
        private_names: whether the names of cases may identify patients or places; such names do
            not leave a site.
    """

    paths: ClassVar[tuple[str, ...]] = ()
    metric: ClassVar[str] = "dice"
    private_names: ClassVar[bool] = True

    def resolved(self, progress: Progress | None = None) -> Self:
        """A copy with all settings that were left to the data resolved."""
        return self

    def check(self) -> None:
        """Refuses, before any work, settings that cannot run, such as an impossible split."""

    def problem(self, progress: Progress | None = None) -> Problem:
        """Prepares the data (once; it is cached) and returns the learning problem."""
        raise NotImplementedError

    def server_problem(self) -> Problem:
        """The problem at a server on another machine: no site's data, its own if it has any."""
        return Problem(self.network, _no_loss, {}, self.metric)

    def site_names(self) -> list[str]:
        """The sites, without reading their data."""
        raise NotImplementedError

    def has(self, split: str) -> bool:
        """Whether a split has cases, according to the settings; `proxy` is the server's."""
        return split not in ("holdout", "proxy") or bool(getattr(self, split, 0))

    def network(self) -> nn.Module:
        """The network, without reading the data."""
        raise NotImplementedError

    def segmenter(self) -> Segmenter:
        """Applies trained networks to new images, without reading the training data."""
        raise ConfigError(
            "this task's model is not applied to image files",
            where=f"task {getattr(self, 'name', '')}",
            remedy="apply models of the tasks that segment images, such as datalist",
        )

    def preprocessing(self) -> dict[str, Any]:
        """The steps from data to inputs and from outputs to results, in plain values.

        `input` has at least `name`, `shape` (batch, channels, sizes; None for any) and
        `multiple_of`: the divisor of each size, None where sizes are fixed. `output` has `name`
        and `classes`, in the order of the network's outputs.
        """
        raise ConfigError(
            "this task does not describe how its inputs are made",
            where=f"task {type(self).__name__}",
            remedy="implement its method preprocessing",
        )

    def memory(self) -> int:
        """Bytes of prepared data held in memory during a run."""
        raise NotImplementedError

    def where(self) -> str:
        """The location of the data, or how to obtain it, in one line."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The record of the data in `environment.json`: cases per site, digest of the split."""
        raise NotImplementedError

    def about(self) -> str:
        """What the data is, where to get it, under which licence, and where to put it."""
        return self.where()

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Describes the data that was found; raises a DataError that lists every problem."""
        return [self.where()]

    def prepare(self, progress: Progress | None = None) -> None:
        """Prepares all data into the cache, so that runs start at once."""
        self.problem(progress)


def _no_loss(network: nn.Module, batch: Batch) -> Tensor:
    raise NotImplementedError  # the server has no data to compute it on
