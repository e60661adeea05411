"""Verbs that show results: report, compare."""

from __future__ import annotations

import json
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


def compare(
    left: Annotated[Path, typer.Argument(help="A run folder, or the folder of a row.")],
    right: Annotated[Path, typer.Argument(help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """Show what differs between two runs: settings, environment, scores, weights."""
    from autofedavg.report.compare import compare_runs
    from autofedavg.report.compare_text import comparison_text

    made = compare_runs(left, right)
    text = json.dumps(made.plain(), indent=1) + "\n" if as_json else comparison_text(made)
    typer.echo(text, nl=False)
