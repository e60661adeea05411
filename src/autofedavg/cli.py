"""The command line: parses, calls, prints. Heavy imports stay inside the verbs."""

from __future__ import annotations

import json
import logging
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import typer

from autofedavg.errors import AutoFedAvgError, ConfigError, did_you_mean

INTERRUPTED = 130

app = typer.Typer(
    help="Federated averaging with aggregation weights learned from the clients' own data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

StudyFile = Annotated[Path, typer.Argument(help="A study: a TOML file with one run table per row.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one value of every row, e.g. method.t0=5. Repeatable."),
]
Only = Annotated[list[str] | None, typer.Option("--only", help="Run this row alone. Repeatable.")]
SeedList = Annotated[str, typer.Option(help="Seeds instead of the study's, e.g. 0,1,2.")]
FoldList = Annotated[str, typer.Option(help="Folds instead of the study's, e.g. 0,1.")]
Engine = Annotated[str, typer.Option(help="Engine: see `autofedavg list engines`.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Worker processes (default: chosen; never changes results).", min=1),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads per worker (default: chosen; may change last bits).", min=1),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _tell_version(asked: bool) -> None:
    if asked:
        from autofedavg import __version__

        typer.echo(__version__)
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version."),
]


@app.callback()
def _common(debug: Debug = False, version: Version = False) -> None:  # noqa: ARG001 - told by its callback
    click.get_current_context().ensure_object(dict)["debug"] = debug


@app.command()
def run(
    study: StudyFile,
    only: Only = None,
    seeds: SeedList = "",
    folds: FoldList = "",
    sets: Sets = None,
    out: Annotated[Path, typer.Option(help="Where run folders are written.")] = Path("runs"),
    engine: Engine = "simulator",
    device: Device = "cpu",
    workers: Workers = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Run a study: every row with every seed."""
    from autofedavg.experiment.config import read_study
    from autofedavg.machines import Machine
    from autofedavg.progress import watching
    from autofedavg.studies import run_study

    plan = read_study(
        study,
        sets or [],
        _numbers(seeds, "seeds"),
        only or [],
        _numbers(folds, "folds"),
    )
    with watching() as observer:
        home = run_study(plan, out, Machine(engine, device, workers, threads), observer)
    _say_where(home, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a study's folder.")],
    engine: Annotated[str, typer.Option(help="Engine; as before when left out.")] = "",
    device: Annotated[str, typer.Option(help="Device; as before when left out.")] = "",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Go on from the last checkpoint: the same bits as if never stopped."""
    from autofedavg.machines import Machine
    from autofedavg.progress import watching
    from autofedavg.studies import resume as go_on

    with watching() as observer:
        home = go_on(folder, Machine(engine or None, device or None, workers), observer)
    _say_where(home, as_json)


@app.command()
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


@app.command()
def check(study: StudyFile, sets: Sets = None, as_json: AsJson = False) -> None:
    """Validate a study; print every value with its origin, the traffic and the memory it needs."""
    from autofedavg.experiment.config import read_study
    from autofedavg.experiment.forecast import forecast, forecast_text

    plan = read_study(study, sets or [])
    seen = _watched(lambda progress: forecast(plan, progress))
    typer.echo(json.dumps(seen, indent=1) if as_json else forecast_text(seen))


@app.command()
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
    from autofedavg.experiment.data import read_task
    from autofedavg.looking import inspect_list, verify_task

    looking = what == "inspect"
    if (out or study) and not looking:
        raise ConfigError("--out and --study belong to `data inspect`", where=f"data {what}")
    if study and study.exists():
        raise ConfigError("it exists already", where=str(study), remedy="name another file")
    task = read_task("datalist" if looking else what, listing, root, sets or [])
    if looking:
        inspect_list(task, out, study, as_json, typer.echo, _watched)
    else:
        verify_task(task, prepare, as_json, typer.echo, _watched)


@app.command("list")
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


def _watched(work: Callable[[Any], Any]) -> Any:
    """Long work under a bar; nothing may be printed meanwhile, a bar takes stdout over."""
    from autofedavg.progress import watching

    with watching() as observer:
        return work(observer.preparing)


def main() -> None:
    """The command's entry: exit codes 0 done, 1 failed, 2 bad usage, 3 data, 130 interrupted."""
    logging.getLogger("autofedavg").addHandler(_stderr_log())
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(_main(sys.argv[1:]))


def _main(arguments: list[str]) -> int:
    shared: dict[str, Any] = {}
    try:
        code = app(args=arguments, standalone_mode=False, obj=shared)
    except AutoFedAvgError as error:
        if shared.get("debug"):
            traceback.print_exc()
        typer.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code itself
        what = "finished cases are kept; the same command goes on"
        if arguments[:1] != ["data"]:
            what = "finished rounds are kept; `autofedavg resume` goes on"
        typer.echo(f"interrupted: {what}", err=True)
    return int(code or 0)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _stderr_log() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    return handler


def _numbers(text: str, option: str) -> list[int] | None:
    try:
        return [int(number) for number in text.split(",")] if text else None
    except ValueError:
        raise ConfigError(
            f"--{option} {text!r} is not a list of integers", remedy=f"e.g. --{option} 0,1,2"
        ) from None


def _say_where(home: Path, as_json: bool) -> None:
    typer.echo(json.dumps({"folder": str(home)}) if as_json else f"run folder: {home}")
