"""What `autofedavg data` says of a task's data, or of a data list, and writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from autofedavg.core.errors import DataError
from autofedavg.tasks.base import Progress, Task

Watched = Callable[[Callable[[Progress | None], Any]], Any]


class Say(Protocol):
    """Prints a text; results to stdout, talk to stderr."""

    def __call__(self, message: str, *, err: bool = False) -> None: ...


def verify_task(task: Task, prepare: bool, as_json: bool, say: Say, watched: Watched) -> None:
    """Tells what the data is and what is there; prepares it if asked.

    Raises:
        DataError: something is missing or unfit.
    """
    name = str(getattr(task, "name", ""))
    said: dict[str, Any] = {"task": name, "about": task.about(), "found": []}
    if not as_json:
        say(f"{said['about']}\n")
    try:
        said["found"] = watched(task.verify)
        if not as_json:
            say("\n".join(said["found"]))
        if prepare:
            watched(task.prepare)
            if not as_json:
                say("every case is prepared")
    except DataError as error:
        if as_json:
            say(json.dumps({**said, "prepared": False, "error": str(error)}, indent=1))
        raise
    if as_json:
        say(json.dumps({**said, "prepared": prepare, "error": None}, indent=1))


def inspect_list(
    task: Any, out: Path | None, study: Path | None, as_json: bool, say: Say, watched: Watched
) -> None:
    """Tells how the sites of a data list differ; writes a page and a study if asked."""
    from autofedavg.tasks.inspection.look import inspect
    from autofedavg.tasks.lists.splits import split_file
    from autofedavg.tasks.lists.starting import starting_study

    drawn = split_file(task.listing, task.split_seed)
    known = drawn.exists()
    seen: Any = watched(lambda progress: inspect(task, progress))
    say(json.dumps(seen.as_json(), indent=1) if as_json else seen.text())
    written = [drawn] if drawn.exists() and not known else []
    if out:
        written += seen.write(out)
    if study:
        made = starting_study(
            Path(task.datalist), task.root, allow_outside=task.allow_outside, folder=study.parent
        )
        try:
            study.parent.mkdir(parents=True, exist_ok=True)
            study.write_text(made, encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"the study cannot be written: {error.strerror}",
                where=str(study),
                remedy="name a file in a folder that can be written",
            ) from error
        written.append(study)
    for path in written:
        say(f"written: {path}", err=True)
