"""Verbs on trained models: predict."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autofedavg.cli.app import AsJson, watched
from autofedavg.cli.studies import Device

if TYPE_CHECKING:
    from autofedavg.trained.predictions import Prediction

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A run folder, a folder with one run, or a checkpoint's file."
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
        bool, typer.Option("--overwrite", help="Make predictions anew that exist already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Apply a trained model to images; every result lies on its image's own grid."""
    from autofedavg.trained.predict import predict as apply

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
