"""Verbs that look at a run while it goes on: watch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from autofedavg.cli.app import AsJson, finite


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a study's.")],
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    every: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.1, callback=finite)
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show how a run stands, while it goes on or afterwards; never disturbs it."""
    try:
        from autofedavg.monitor.watch.reading import reader
        from autofedavg.monitor.watch.terminal import follow, harmless_stdout, show

        if as_json:
            typer.echo(json.dumps(reader(folder).look().plain(), indent=1))
            return
        console = harmless_stdout()
        if once or not console.is_terminal:
            show(folder, console)
        elif not follow(folder, console, every):
            raise typer.Exit(1)
    except KeyboardInterrupt:
        from autofedavg.monitor.watch.terminal import goes_on

        typer.echo(f"stopped watching; {goes_on(folder)}", err=True)
