"""The command, and the options and helpers that several verbs share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import click
import typer

app = typer.Typer(
    help="Federated averaging with aggregation weights learned from the clients' own data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

KEPT_BY_IT = "kept"  # in the context: what an interrupted verb says of the work it has done
LONGEST = 3600.0  # seconds between two updates
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one value of every row, e.g. method.t0=5. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Baseline = Annotated[str, typer.Option(help="Row to test against (default: the study's baseline).")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _print_version(asked: bool) -> None:
    if asked:
        from autofedavg import __version__

        typer.echo(__version__)
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]


@app.callback()
def _common(debug: Debug = False, version: Version = False) -> None:  # noqa: ARG001 - its callback prints it
    click.get_current_context().ensure_object(dict)["debug"] = debug


def finite(seconds: float) -> float:
    """Refuses "nan", which click's own limits let pass, and more than an hour."""
    if not seconds <= LONGEST:
        raise typer.BadParameter(f"{seconds} is not a number of seconds up to {LONGEST:.0f}")
    return seconds


def percentages(scores: list[float] | None) -> list[float] | None:
    """Refuses scores that no model can reach, and "nan", which click lets pass."""
    for score in scores or []:
        if not 0 < score <= 100:
            raise typer.BadParameter(f"{score} is not a score above 0 and up to 100 percent")
    return scores


@contextmanager
def saying_if_interrupted(kept: Callable[[], str]) -> Iterator[None]:
    """Around work: where it is interrupted, the end of the command's last line."""
    try:
        yield
    except KeyboardInterrupt:
        click.get_current_context().ensure_object(dict)[KEPT_BY_IT] = kept()
        raise


def watched(work: Callable[[Any], Any]) -> Any:
    """Runs long work under a progress bar; the work must not print, as a bar takes over stdout."""
    from autofedavg.monitor.progress import watching

    with watching() as observer:
        return work(observer.preparing)


def echo(content: Any, text: str, as_json: bool) -> None:
    """Prints a result: as one line of JSON, or as text."""
    typer.echo(json.dumps(content) if as_json else text)
