"""Verbs about data and what is registered: data, list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from autofedavg.cli.app import AsJson, watched
from autofedavg.core.errors import ConfigError, did_you_mean


def data(
    what: Annotated[str, typer.Argument(help="A task, or `inspect`: look at your own data.")],
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
        Path | None, typer.Option(help="inspect: also write what was seen here.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="inspect: write a study to start from to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what to download and where to put it; verify it; prepare it. Or inspect your own."""
    from autofedavg.cli.data_output import inspect_list, verify_task
    from autofedavg.experiment.data_summary import read_task

    looking = what == "inspect"
    if (out or study) and not looking:
        raise ConfigError("--out and --study belong to `data inspect`", where=f"data {what}")
    if study and study.exists():
        raise ConfigError("it exists already", where=str(study), remedy="name another file")
    task = read_task("datalist" if looking else what, listing, root, sets or [])
    if looking:
        inspect_list(task, out, study, as_json, typer.echo, watched)
    else:
        verify_task(task, prepare, as_json, typer.echo, watched)


def list_(
    what: Annotated[str, typer.Argument(help="methods, tasks or engines.")],
    as_json: AsJson = False,
) -> None:
    """List what is registered."""
    from autofedavg.engines import ENGINES
    from autofedavg.methods import METHODS
    from autofedavg.tasks import TASKS

    known = {"methods": METHODS, "tasks": TASKS, "engines": ENGINES}
    if what not in known:
        raise ConfigError(f"{what!r} cannot be listed", remedy=did_you_mean(what, known))
    names = list(known[what])
    typer.echo(json.dumps(names) if as_json else "\n".join(names))
