"""Verbs about trained models: export-model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from autofedavg.cli.app import AsJson


def export_model(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A run folder, or a checkpoint's file.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    format: Annotated[
        Literal["torchscript", "onnx", "bundle"],
        typer.Option(help="What to write; bundle is MONAI's."),
    ] = "torchscript",
    which: Annotated[
        str, typer.Option("--model", help="global, or local-<site> for a site's own model.")
    ] = "global",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export in that folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a trained network as a file that runs without this package, and how to use it."""
    from autofedavg.trained.export import export_model as export
    from autofedavg.trained.load import load_trained

    written = export(load_trained(model, which), out, format, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(written.as_json()))
    else:
        typer.echo("\n".join(str(written.folder / name) for name in written.files))
        typer.echo(written.said(), err=True)
