"""Verbs on trained models: predict, export-model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from autofedavg.cli.app import AsJson, watched
from autofedavg.cli.studies import Device

if TYPE_CHECKING:
    from autofedavg.inference.predictions import Prediction

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A run folder, a folder with one run, or a checkpoint file."
    ),
]
Which = Annotated[str, typer.Option("--model", help="global, or local-<site>: a site's own model.")]


def predict(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...",
            help="Image files or folders of DICOM series; 'a|b' for the channels of one image.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the predictions and predictions.json.")],
    which: Which = "global",
    device: Device = "cpu",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing predictions.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Apply a trained model to images; each prediction has its image's own grid."""
    from autofedavg.inference.predict import predict as apply

    made = watched(
        lambda progress: apply(
            model, images, out, which, device=device, overwrite=overwrite, progress=progress
        )
    )
    if as_json:
        content = {"folder": str(out), "cases": [asdict(one) for one in made]}
        typer.echo(json.dumps(content, indent=1))
        return
    for one in made:
        typer.echo(f"{out / one.file}: {_amounts(one)}")


def _amounts(made: Prediction) -> str:
    if made.ml is not None:
        return ", ".join(f"{name} {ml:.2f} ml" for name, ml in made.ml.items())
    return ", ".join(f"{name} {count} voxels" for name, count in made.voxels.items())


def export_model(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    format: Annotated[
        Literal["torchscript", "onnx", "bundle"],
        typer.Option(help="File format; bundle is a MONAI bundle."),
    ] = "torchscript",
    which: Which = "global",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export in that folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a trained network as a file that runs without this package, with instructions."""
    from autofedavg.inference.export import export_model as export
    from autofedavg.inference.load import load_trained

    written = export(load_trained(model, which), out, format, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(written.as_json()))
    else:
        typer.echo("\n".join(str(written.folder / name) for name in written.files))
        typer.echo(written.said(), err=True)
