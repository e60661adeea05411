"""The verb about data: data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autofedavg.cli.app import AsJson, watched
from autofedavg.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from autofedavg.tasks.base import Task


def data(
    what: Annotated[str, typer.Argument(help="A task, or `inspect`: describe your own data.")],
    listing: Annotated[
        Path | None, typer.Argument(metavar="[LIST]", help="The data list, .csv or .json.")
    ] = None,
    root: Annotated[str, typer.Option(help="Where the data is: short for --set root=.")] = "",
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Read every file and fill the cache for runs.")
    ] = False,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting of the task, e.g. cases=2. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="inspect: also write the result to this folder.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="inspect: write a study to start from to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what to download and where to put it; verify it; prepare it. Or inspect your own."""
    from autofedavg.experiment.config import read_task

    inspecting = what == "inspect"
    if (out or study) and not inspecting:
        raise ConfigError("--out and --study belong to `data inspect`", where=f"data {what}")
    if study and study.exists():
        raise ConfigError("the file exists already", where=str(study), remedy="name another file")
    task = read_task("datalist" if inspecting else what, listing, root, sets or [])
    if inspecting:
        _inspect(task, out, study, as_json)
    else:
        _verify(task, prepare, as_json)


def _verify(task: Task, prepare: bool, as_json: bool) -> None:
    """Prints what the data is and which of it is present; prepares it if asked.

    Raises:
        DataError: something is missing or unfit.
    """
    found: dict[str, Any] = {"task": str(getattr(task, "name", "")), "about": task.about()}
    found |= {"found": [], "prepared": False, "error": None}
    if not as_json:
        typer.echo(f"{found['about']}\n")
    try:
        found["found"] = watched(task.verify)
        if not as_json:
            typer.echo("\n".join(found["found"]))
        if prepare:
            watched(task.prepare)
            found["prepared"] = True
            if not as_json:
                typer.echo("every case is prepared")
    except DataError as error:
        if as_json:
            typer.echo(json.dumps({**found, "error": str(error)}, indent=1))
        raise
    if as_json:
        typer.echo(json.dumps(found, indent=1))


def _inspect(task: Any, out: Path | None, study: Path | None, as_json: bool) -> None:
    """Prints how the sites of a data list differ; writes a page and a study if asked."""
    from autofedavg.tasks.inspection.look import inspect
    from autofedavg.tasks.lists.splits import split_file
    from autofedavg.tasks.lists.starting import starting_study

    split = split_file(task.listing, task.split_seed)
    known = split.exists()
    result = watched(lambda progress: inspect(task, progress))
    typer.echo(json.dumps(result.as_json(), indent=1) if as_json else result.text())
    written = [split] if split.exists() and not known else []
    if out:
        written += result.write(out)
    if study:
        text = starting_study(
            Path(task.datalist), task.root, allow_outside=task.allow_outside, folder=study.parent
        )
        try:
            study.parent.mkdir(parents=True, exist_ok=True)
            study.write_text(text, encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"the study cannot be written: {error.strerror}",
                where=str(study),
                remedy="name a file in a folder that can be written",
            ) from error
        written.append(study)
    for path in written:
        typer.echo(f"written: {path}", err=True)
