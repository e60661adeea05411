"""The command itself, the options several verbs share, and what they print alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import click
import typer

app = typer.Typer(
    help="Federated averaging with aggregation weights learned from the clients' own data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

LONGEST = 3600.0  # seconds between two looks
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one value of every row, e.g. method.t0=5. Repeatable."),
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


def finite(seconds: float) -> float:
    """Refuses what is no time to wait: click's own limits let "nan" pass."""
    if not seconds <= LONGEST:
        raise typer.BadParameter(f"{seconds} is not a number of seconds up to {LONGEST:.0f}")
    return seconds


def watched(work: Callable[[Any], Any]) -> Any:
    """Long work under a bar; nothing may be printed meanwhile, a bar takes stdout over."""
    from autofedavg.monitor.progress import watching

    with watching() as observer:
        return work(observer.preparing)
