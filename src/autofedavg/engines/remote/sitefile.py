"""A site's own file: where its data is and what it computes on. It never leaves the site."""

from __future__ import annotations

import tomllib
from pathlib import Path

from autofedavg.core.errors import ConfigError, did_you_mean
from autofedavg.core.settings import Settings, setting
from autofedavg.experiment.rows import to_toml
from autofedavg.experiment.validation import Values, validate
from autofedavg.tasks.base import Task

NAME = "autofedavg.toml"


class SiteFile(Settings):
    """What a site sets for itself."""

    device: str = setting("cpu", origin="ours", help="cpu, cuda or cuda:1")
    threads: int = setting(0, origin="ours", help="threads; 0 for the job's choice", ge=0)
    allow_outside: bool = setting(
        False, origin="ours", help="whether a data list's paths may lead out of its root folder"
    )
    state: str = setting(
        "",
        origin="ours",
        help="folder for what the site keeps for itself; empty for ~/.local/state/autofedavg",
    )
    task: dict[str, str] = setting(
        {}, origin="ours", help="the task's paths at this site, e.g. datalist, root and cache"
    )

    def placed(self, task: Task, where: str) -> Task:
        """The job's task with this site's paths.

        Raises:
            ConfigError: something else than a path is set: all else is the study's.
        """
        for name in self.task:
            if name not in task.paths:
                raise ConfigError(
                    f"task.{name} is not a path of this task, and only paths are a site's own",
                    where=where,
                    remedy=did_you_mean(name, task.paths),
                )
        values = {**task.model_dump(), **self.task}
        if "allow_outside" in values:  # not the job's to say
            values["allow_outside"] = self.allow_outside
        return type(task).model_validate(values)


def read_site_file(path: Path | None) -> SiteFile:
    """A site's file; without one, the defaults.

    Relative paths begin at the file's folder.

    Raises:
        ConfigError: it cannot be read, or a setting is wrong.
    """
    if path is None:
        return SiteFile()
    try:
        values: Values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"the site's file cannot be read ({error})",
            where=str(path),
            remedy="write one: docs/how-to/flare.md shows how",
        ) from error
    found: SiteFile = validate(SiteFile, values, str(path), "")
    here = path.absolute().parent
    placed = {name: str(here / value) if value else "" for name, value in found.task.items()}
    state = str(here / found.state) if found.state else ""
    return found.model_copy(update={"task": placed, "state": state})


def site_file_text(task: Task, device: str = "cpu") -> str:
    """A site's file for a task whose paths are known here."""
    paths = {name: str(getattr(task, name)) for name in task.paths if getattr(task, name)}
    outside = bool(getattr(task, "allow_outside", False))
    return to_toml({"device": device, "allow_outside": outside, "task": paths})
