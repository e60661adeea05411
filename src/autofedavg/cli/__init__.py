"""The command line: parses, calls, prints. Heavy imports stay inside the verbs."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click
import typer

from autofedavg.cli import data, listing, models, results, studies
from autofedavg.cli.app import KEPT_BY_IT, app
from autofedavg.core.errors import AutoFedAvgError, printable

INTERRUPTED = 130
CASES_KEPT = ": finished cases are kept; the same command continues"
TRIALS_KEPT = ": finished trials and rounds are kept; the same command continues"
KEPT = {"data": CASES_KEPT, "predict": CASES_KEPT, "tune": TRIALS_KEPT}  # others say it themselves
VERBS: dict[str, Callable[..., None]] = {  # in the order of --help
    "run": studies.run,
    "resume": studies.resume,
    "tune": studies.tune,
    "check": studies.check,
    "show": studies.show,
    "watch": results.watch,
    "report": results.report,
    "serve": results.serve,
    "compare": results.compare,
    "ceiling": results.ceiling,
    "archive": results.archive,
    "predict": models.predict,
    "export-model": models.export_model,
    "export": studies.export,
    "allow": studies.allow,
    "data": data.data,
    "list": listing.list_,
}
for _name, _verb in VERBS.items():
    app.command(_name)(_verb)


def main() -> None:
    """The command's entry: exit codes 0 done, 1 failed, 2 bad usage, 3 data, 130 interrupted."""
    logging.getLogger("autofedavg").addHandler(_stderr_log())
    for number in (signal.SIGTERM, signal.SIGHUP):  # killed, or the terminal was closed
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks
            signal.signal(number, _interrupt)
    sys.exit(_main(sys.argv[1:]))


def _main(arguments: list[str]) -> int:
    shared: dict[str, Any] = {}
    try:
        code = app(args=arguments, standalone_mode=False, obj=shared)
    except AutoFedAvgError as error:
        if shared.get("debug"):
            traceback.print_exc()
        message = "\n".join(printable(line) for line in str(error).split("\n"))
        typer.echo(f"error: {message}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code itself
        verb = next((word for word in arguments if word in VERBS), "")
        typer.echo(f"interrupted{shared.get(KEPT_BY_IT) or KEPT.get(verb, '')}", err=True)
    return int(code or 0)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _stderr_log() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    return handler
