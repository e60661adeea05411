"""A trained model applied to new images: every answer on its image's own grid."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from autofedavg import __version__
from autofedavg.core.device import checked_device
from autofedavg.core.errors import ConfigError, DataError, RunError
from autofedavg.inference.load import Trained, load_trained
from autofedavg.inference.predictions import Prediction, PredictionFolder, Wanted
from autofedavg.tasks.base import Progress, Segmenter
from autofedavg.tasks.imaging.files import identity, stem

CHANNELS = "|"  # between the files of one image's channels, as in a data list
Image = str | Path | Sequence[str | Path]


def predict(
    path: Path | str,
    images: Image | Sequence[Image],
    out: Path | str,
    model: str = "global",
    *,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[Prediction]:
    """Applies a trained model to images and writes what it finds.

    Args:
        path: a run folder, a folder with one run below it, or a checkpoint's file.
        images: files or folders of DICOM series; the files of one image's channels are a sequence,
            or a text with | between them. A single path is one image.
        out: the folder for `<case>.nii.gz` (of pictures `<case>.png`) and `predictions.json`. What
            an earlier call with the same model and images has finished there is kept.
        model: "global", or "local-<site>" for a site's own model.
        device: "cpu", "cuda" or "cuda:1".
        overwrite: whether predictions that exist are made anew.
        progress: called with (what, done, total).

    Returns:
        The predictions in the order of the images.

    Raises:
        RunError: there is no such model, files are in the way, or they cannot be written.
        DataError: images cannot be used, all listed. What headers tell is told before any
            prediction; an image that fails later does not keep the others from being predicted.
    """
    hardware = checked_device(device)
    trained = load_trained(Path(path), model)
    segmenter = trained.config.task.segmenter()
    named = [images] if isinstance(images, str | Path) else images
    wanted = _wanted([_files(image) for image in named], segmenter, progress)
    _protect(wanted, Path(out))
    classes = {name: number for number, name in enumerate(segmenter.classes, 1)}
    folder = PredictionFolder(Path(out), _about(trained), classes)
    network = trained.network.to(hardware)
    wrong: list[DataError] = []
    with folder.opened(wanted, overwrite=overwrite) as missing:
        for done, case in enumerate(missing, len(wanted) - len(missing)):
            if progress:
                progress("predicting", done, len(wanted))
            try:
                made = segmenter.segment(network, case.image)
            except DataError as error:
                wrong.append(error)
                continue
            except torch.OutOfMemoryError as error:
                raise RunError(
                    "the memory of the device does not suffice",
                    where=f"{case.image[0]} on {device}",
                    remedy="use --device cpu; finished cases are kept, the same command continues",
                ) from error
            voxels = dict(zip(classes, made.voxels, strict=True))
            ml = None if made.ml is None else dict(zip(classes, made.ml, strict=True))
            image, digest = tuple(map(str, case.image)), case.files_sha256
            told = Prediction(case.case, image, case.file, voxels, ml, digest, device, __version__)
            folder.add(told, made.content)
        if progress:
            progress("predicting", len(wanted), len(wanted))
    written = "the predictions of the others are written"
    _refuse(wrong, len(wanted), "none is written" if len(wrong) == len(wanted) else written)
    return folder.of(wanted)


def _about(trained: Trained) -> dict[str, Any]:
    return {
        "folder": str(trained.folder.path.absolute()),
        "checkpoint": trained.name,
        "sha256": trained.facts["sha256"],
        "round": trained.facts.get("t"),
        "validation": trained.facts.get("score"),
        "row": trained.config.name,
        "task": getattr(trained.config.task, "name", ""),
    }


def _files(image: Image) -> tuple[Path, ...]:
    """The files of one image, its channels."""
    if isinstance(image, str):
        image = [part.strip() for part in image.split(CHANNELS) if part.strip()]
    parts = (image,) if isinstance(image, Path) else tuple(image)
    if not parts:
        raise ConfigError("an image without a name", where="images", remedy="name a file")
    return tuple(Path(os.path.normpath(Path(part).absolute())) for part in parts)


def _wanted(
    images: Sequence[tuple[Path, ...]], segmenter: Segmenter, progress: Progress | None
) -> list[Wanted]:
    """Every image with its prediction's file; refuses what cannot be predicted, all at once."""
    wanted: list[Wanted] = []
    wrong: list[DataError] = []
    for done, (case, image) in enumerate(zip(case_names(images), images, strict=True)):
        if progress:
            progress("looking at images", done, len(images))
        try:
            ending = segmenter.ending(image)
            seen = json.dumps([identity(path) for path in image]).encode()
        except DataError as error:
            wrong.append(error)
        else:
            digest = hashlib.sha256(seen).hexdigest()
            wanted.append(Wanted(case, image, f"{case}{ending}", digest))
    _refuse(wrong, len(images), "nothing has been predicted")
    return wanted


def _protect(wanted: Sequence[Wanted], out: Path) -> None:
    """Refuses to write where an image lies, by whatever path it was named."""
    images = {(path.stat().st_dev, path.stat().st_ino) for case in wanted for path in case.image}
    for path in (out / case.file for case in wanted):
        if path.exists() and (path.stat().st_dev, path.stat().st_ino) in images:
            raise ConfigError(
                "a prediction would be written over this image",
                where=str(path),
                remedy="write elsewhere with --out",
            )


def _refuse(wrong: Sequence[DataError], total: int, state: str) -> None:
    if len(wrong) == total == 1:
        raise wrong[0]
    if wrong:
        raise DataError(
            f"{len(wrong)} of {total} images cannot be used:\n  " + "\n  ".join(map(str, wrong)),
            remedy=f"{state}; mend these, or leave them out",
        )


def case_names(images: Sequence[tuple[Path, ...]]) -> list[str]:
    """What predictions are called: their image's file or folder, without what says its kind.

    Where names repeat, as those of DICOM folders do, as many folders above are put in front as it
    takes to tell them apart: a/CT and b/CT become a_CT and b_CT. Of channels the first file counts.
    File systems that do not tell small letters from capitals are thought of.

    Raises:
        ConfigError: an image is named twice, or two cannot be told apart.
    """
    first = [image[0] for image in images]
    names = [stem(path) for path in first]
    for depth in range(1, max((len(path.parts) for path in first), default=0)):
        for alike in _repeated(names):
            for number in alike:
                above = first[number].parts[1:-1][-depth:]
                names[number] = "_".join((*above, stem(first[number])))
    for one, two, *_ in _repeated(names):
        what = f"its prediction would be called like that of {first[one]}: {names[one]}"
        remedy = "predict it in a call with another --out"
        if images[one] == images[two]:
            what, remedy = "it is named twice", "name every image once"
        raise ConfigError(what, where=str(first[two]), remedy=remedy)
    return names


def _repeated(names: Sequence[str]) -> list[list[int]]:
    """The places of names that occur more than once."""
    places: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        places.setdefault(name.casefold(), []).append(number)
    return [found for found in places.values() if len(found) > 1]
