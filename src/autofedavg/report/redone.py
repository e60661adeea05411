"""Opens finished runs to compute a case's segmentation again, and checks it against the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from autofedavg.core.errors import ConfigError, DataError
from autofedavg.report.repeats import Repeat

if TYPE_CHECKING:
    from torch import nn

    from autofedavg.tasks.base import Progress
    from autofedavg.tasks.imaging.task import Collection

EQUAL = 1e-6  # what a score computed anew may be off on the same machine,
CLOSE = 1e-2  # and on another one
MACHINE = ("device", "processor", "versions")


@dataclass(frozen=True)
class Opened:
    """A finished run with its model and its data at hand.

    Attributes:
        compared: whether all of its data was found to be what the run was made with.
        elsewhere: in what this machine differs from the run's; empty if in nothing.
    """

    network: nn.Module
    collection: Collection
    compared: bool
    elsewhere: str


class Check(NamedTuple):
    """A score computed anew beside the one on disk."""

    what: str
    anew: float
    stored: float
    elsewhere: str

    @property
    def off(self) -> float:
        return abs(self.anew - self.stored)

    @property
    def passed(self) -> bool:
        return self.off <= (CLOSE if self.elsewhere else EQUAL)


def open_run(repeat: Repeat, progress: Progress | None = None) -> Opened:
    """Loads a run's global model and finds its data.

    Raises:
        AutoFedAvgError: the task's cases cannot be drawn, the model or the data is missing, or
            the data is not what the run was made with.
    """
    from autofedavg.inference.load import load_trained
    from autofedavg.tasks.imaging.task import SegmentationTask

    trained = load_trained(repeat.folder)
    task = trained.config.task
    if not isinstance(task, SegmentationTask):
        name = repeat.config["task"]["name"]
        raise ConfigError(f"the task {name!r} segments no images, so there is nothing to draw")
    collection = task.collection(progress)
    compared = _same_data(repeat, task.outline(), collection)
    device = _device(repeat)
    network = trained.network.to(device)
    return Opened(network, collection, compared, _elsewhere(repeat, device))


def check_notes(checks: Sequence[Check]) -> list[str]:
    """A note on scores that could not be had again; none if all could."""
    wrong = [check for check in checks if not check.passed]
    if not wrong:
        return []
    worst = max(wrong, key=lambda check: check.off)
    why = "nothing is known to have changed, so look at the data and the checkpoints"
    if worst.elsewhere:
        why = f"the run was made elsewhere (other {worst.elsewhere}), which rarely changes so much"
    return [
        f"In {len(wrong)} of {len(checks)} pictures the segmentation has not the score in "
        f"scores.csv: it is off by up to {worst.off:.2g} ({worst.what}: {worst.anew:.4f} now, "
        f"{worst.stored:.4f} then); {why}."
    ]


def _same_data(repeat: Repeat, now: dict[str, Any], collection: Collection) -> bool:
    """Refuses other data than the run's; false if it would take too long to compare all of it."""
    before = repeat.environment["data"]
    content = before.get("content_sha256")
    found = None
    changed = ""
    if before.get("split_sha256") != now.get("split_sha256"):
        changed = "the splits of the data are"
    elif not content and before.get("data") != now.get("data"):
        changed = "the data is"
    elif content:
        found = collection.content()
        changed = "the content of the files is" if found not in (None, content) else ""
    if changed:
        raise DataError(
            f"{changed} no longer what the run was made with",
            where=str(repeat.folder),
            remedy="put the data back as it was",
        )
    return not content or found is not None


def _device(repeat: Repeat) -> str:
    """The device that the run was made on, if it can be had here."""
    from autofedavg.core.device import checked_device

    asked = str(repeat.environment.get("asked_device", "cpu"))
    try:
        checked_device(asked)
    except ConfigError:
        return "cpu"
    return asked


def _elsewhere(repeat: Repeat, device: str) -> str:
    """In what the machine that tested the run's models differs from this one."""
    from autofedavg.experiment.environment import environment

    now = environment(device)
    then = [repeat.environment, *repeat.environment.get("resumed", [])][-1]
    return ", ".join(part for part in MACHINE if then.get(part) != now[part])
