"""A task on its own, outside a study: what `autofedavg data` is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autofedavg.core.errors import ConfigError, did_you_mean
from autofedavg.experiment.validation import Values, override, validate
from autofedavg.tasks import TASKS
from autofedavg.tasks.base import Task


def read_task(
    name: str, listing: Path | None = None, root: str = "", overrides: Sequence[str] = ()
) -> Task:
    """A task with its settings.

    Args:
        name: the task's.
        listing: the data list, for the task `datalist` and for it alone.
        root: where the data is; the task's default when empty.
        overrides: "key=value" settings of the task; "task.key=value" means the same.

    Raises:
        ConfigError: there is no such task, or a setting is wrong.
    """
    place = f"data {name}"
    if name not in TASKS:
        raise ConfigError(
            f"{name!r} is neither a task nor `inspect`",
            where="data",
            remedy=did_you_mean(name, [*TASKS, "inspect"]),
        )
    if (listing is None) == (name == "datalist"):
        said = "it needs a data list" if listing is None else "it takes no data list"
        raise ConfigError(said, where=place, remedy="e.g. autofedavg data datalist LIST")
    values: Values = {"name": name}
    if listing:
        values["datalist"] = str(listing.absolute())
    if root:
        values["root"] = root
    for text in overrides:
        override(values, text.removeprefix("task."))
    task: Task = validate(TASKS[name], values, place, "task")
    return task
