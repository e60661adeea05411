"""Verbs that show results or keep them: report, compare, serve, archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from autofedavg.cli.app import AsJson, finite, watched


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, archives, or folders above them.")
    ],
    format: Annotated[
        Literal["text", "markdown", "csv", "latex", "json"], typer.Option(help="How to print.")
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the page, and every table and figure, into this folder."),
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="Row to test against; the study's by default.")
    ] = "",
    examples: Annotated[
        bool, typer.Option(help="With --out: pictures of cases, for which models are applied.")
    ] = True,
    method: Annotated[
        str, typer.Option(help="Row whose pictures stand beside the baseline's; chosen by rule.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print the study's tables; with --out, write one page with all tables and figures."""
    from autofedavg.report.build import build_report, report_tables
    from autofedavg.report.formats import joined
    from autofedavg.report.read import read_results

    if out:
        made = watched(
            lambda told: build_report(
                runs, baseline, examples=examples, method=method, progress=told
            )
        )
        tables = made.tables
    else:
        made, tables = None, report_tables(watched(lambda told: read_results(runs, baseline, told)))
    weights = (table for table in tables["weights"] if table.name == "weights")
    printed = [*tables["scores"], *weights]
    typer.echo(joined(printed, "json" if as_json else format), nl=False)
    if made and out:
        page = watched(lambda told: made.write(out, told))
        typer.echo(f"report written to {page}", err=True)


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
        float,
        typer.Option(help="Seconds between two looks at the folders.", min=0.2, callback=finite),
    ] = 1.5,
    browse: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    baseline: Annotated[
        str, typer.Option(help="Row to test against; the study's by default.")
    ] = "",
) -> None:
    """Show the report in a browser while runs go on; nothing is written. Ctrl-C ends it."""
    from autofedavg.monitor.serve.serving import serve

    serve(
        runs,
        show=typer.echo,
        warn=lambda text: typer.echo(text, err=True),
        host=host,
        port=port,
        expose=expose,
        allow_hosts=allow_host or (),
        token=token,
        baseline=baseline,
        every=every,
        browse=browse,
    )


def archive(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs, archives, or folders above.")],
    out: Annotated[Path, typer.Option(help="Folder of the archives, one file per study.")],
) -> None:
    """Add finished runs, without their weights, to one archive per study, to publish them."""
    from autofedavg.experiment.archive import archive

    for place in archive(runs, out):
        typer.echo(place)


def compare(
    left: Annotated[
        Path, typer.Argument(help="A run folder, a row's folder, or either in an archive.")
    ],
    right: Annotated[Path, typer.Argument(help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """Show what differs between two runs: settings, environment, scores, weights."""
    from autofedavg.report.compare import compare_runs
    from autofedavg.report.compare_text import comparison_text

    made = compare_runs(left, right)
    text = json.dumps(made.plain(), indent=1) + "\n" if as_json else comparison_text(made)
    typer.echo(text, nl=False)
