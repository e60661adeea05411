"""Verbs on run folders: watch, report, serve, archive, ceiling, compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from autofedavg.cli.app import AsJson, Baseline, finite, percentages, watched
from autofedavg.cli.studies import Device, Threads, Workers, numbers
from autofedavg.core.errors import ConfigError


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a study's.")],
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    every: Annotated[
        float, typer.Option(help="Seconds between updates.", min=0.1, callback=finite)
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run, during or after it; reads its folder only."""
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


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, archives, or folders above them.")
    ],
    format: Annotated[
        Literal["text", "markdown", "csv", "latex", "json"], typer.Option(help="How to print.")
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the page, every table and every figure to this folder."),
    ] = None,
    baseline: Baseline = "",
    examples: Annotated[
        bool, typer.Option(help="With --out: include example cases, which applies the models.")
    ] = True,
    method: Annotated[
        str,
        typer.Option(help="With --out: method to show next to the baseline (default: automatic)."),
    ] = "",
    target: Annotated[
        list[float] | None,
        typer.Option(
            help="Score in percent to reach: adds a table of rounds, bytes and seconds to it. "
            "Repeatable (default: 90, 95 and 99 % of the baseline's last score, with --out).",
            callback=percentages,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print tables of one or more studies; with --out, write a page with all tables and figures."""
    from autofedavg.report.collection import draw_studies, printed_studies, read_studies
    from autofedavg.report.formats import joined

    for option, given in (("--method", bool(method)), ("--no-examples", not examples)):
        if given and out is None:
            raise ConfigError(
                "this is about the page, and no page is asked for",
                where=option,
                remedy=f"add --out DIR, or leave {option} out",
            )
    targets = target or ()
    studies = watched(lambda progress: read_studies(runs, baseline, progress, targets=targets))
    made = None
    if out:
        made = watched(
            lambda progress: draw_studies(
                studies, examples=examples, method=method, progress=progress
            )
        )
    printed = printed_studies(studies)
    typer.echo(joined(printed, "json" if as_json else format), nl=False)
    if len(studies.studies) > 1 and not studies.rows:
        typer.echo(" ".join(["no overview of the studies:", *studies.short]), err=True)
    if made and out:
        page = watched(lambda progress: made.write(out, progress))
        typer.echo(f"report written to {page}", err=True)


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders above them; they may not exist yet."),
    ],
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535)
    ] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    expose: Annotated[
        bool,
        typer.Option(
            "--expose", help="Allow an address that other machines can reach; see the docs."
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Additional Host header to accept. Repeatable."),
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="Require a token on this machine, too.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(help="Seconds between reads of the folders.", min=0.2, callback=finite),
    ] = 1.5,
    browse: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    baseline: Baseline = "",
) -> None:
    """Show the report in a browser and update it during runs; writes nothing. Ctrl-C stops it."""
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


def ceiling(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Finished runs that kept models, or folders above."),
    ],
    rounds: Annotated[
        str, typer.Option(help="Rounds instead of all that were kept, e.g. 5,20.")
    ] = "",
    split: Annotated[
        Literal["test", "validation"],
        typer.Option(help="Cases: one half fits the weights, the other half scores them."),
    ] = "test",
    steps: Annotated[int, typer.Option(help="Steps of a fit.", min=1)] = 100,
    rate: Annotated[float, typer.Option(help="First step size of a fit.")] = 0.1,
    device: Device = "cpu",
    workers: Workers = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure what the best weights of a run's kept models could gain: an oracle."""
    from autofedavg.experiment.folder import CEILING, Ledger
    from autofedavg.experiment.oracle import Fit
    from autofedavg.experiment.validation import validate
    from autofedavg.report.ceiling import measured, table_of_ceilings
    from autofedavg.report.formats import to_text
    from autofedavg.studies.machine import Machine
    from autofedavg.studies.measure_ceiling import measure_ceiling

    fit: Fit = validate(Fit, {"steps": steps, "rate": rate}, "ceiling", "")
    machine = Machine(None, device, workers, threads)
    chosen = numbers(rounds, "rounds") or []
    found = watched(
        lambda progress: measure_ceiling(
            runs, rounds=chosen, split=split, fit=fit, machine=machine, progress=progress
        )
    )
    contents = {path: Ledger(path).ceiling() or {} for path in found}
    if as_json:
        listed = [{"run": str(path), **content} for path, content in contents.items()]
        typer.echo(json.dumps(listed, indent=1))
        return
    lines = [
        line
        for path, content in contents.items()
        for line in measured(f"{path.parent.name}, {path.name}", [content])
    ]
    if table := table_of_ceilings(lines):
        typer.echo(to_text(table), nl=False)
    for path in found:
        typer.echo(f"written: {path / CEILING}", err=True)


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
