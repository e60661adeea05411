"""Verbs that show results: report, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from autofedavg.cli.app import AsJson


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders above them.")],
    format: Annotated[
        Literal["text", "markdown", "csv", "latex", "json"], typer.Option(help="How to print.")
    ] = "text",
    out: Annotated[
        Path | None, typer.Option(help="Also write every table in every format.")
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="Row to test against; the study's by default.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print the study's table, made from the per-case scores in the run folders."""
    from autofedavg.experiment.store import disk_errors
    from autofedavg.report.classes import classes_table
    from autofedavg.report.formats import FORMATS, joined
    from autofedavg.report.read import read_results
    from autofedavg.report.tables import scores_table, weights_table

    results = read_results(runs, baseline)
    made = (scores_table(results), classes_table(results), weights_table(results))
    tables = [table for table in made if table]
    typer.echo(joined(tables, "json" if as_json else format), nl=False)
    if out:
        folder = out / "tables"
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for table in tables:
                for ending, make in FORMATS.values():
                    (folder / f"{table.name}.{ending}").write_text(make(table), encoding="utf-8")
        typer.echo(f"tables written to {folder}", err=True)


def serve(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders above them; also ones to come.")
    ],
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 is any free one.", min=0, max=65535)
    ] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    expose: Annotated[
        bool,
        typer.Option("--expose", help="Allow an address that other machines reach; see the docs."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name the page may be asked for by. Repeatable."),
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="Ask for a token, also on this machine.")
    ] = False,
    every: Annotated[
        float, typer.Option(help="Seconds between two looks at the folders.", min=0.2)
    ] = 1.5,
    browse: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    baseline: Annotated[
        str, typer.Option(help="Row to test against; the study's by default.")
    ] = "",
) -> None:
    """Show the report in a browser while runs go on; nothing is written. Ctrl-C ends it."""
    from autofedavg.live.serving import Door, serve

    serve(
        runs,
        Door(host, port, expose, tuple(allow_host or ()), token),
        tell=typer.echo,
        say=lambda text: typer.echo(text, err=True),
        baseline=baseline,
        every=every,
        browse=browse,
    )
