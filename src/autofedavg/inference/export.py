"""A trained model for others: one file that runs without this package, and how to use it as JSON.

The file is written and compared elsewhere first: what differs never gets to its folder.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from autofedavg.core.ensemble import Ensemble
from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.experiment.environment import environment
from autofedavg.experiment.folder import read_json
from autofedavg.experiment.folder_writer import disk_errors, write_atomically
from autofedavg.experiment.machine_paths import run_name
from autofedavg.inference.bundle import BUNDLE, bundle_files, refuse_unlike
from autofedavg.inference.formats import FORMATS, Ports, Run
from autofedavg.inference.load import Trained

FormatName = Literal["torchscript", "onnx", "bundle"]
SCHEMA = 1
RECIPE = "preprocessing.json"
IN_BUNDLE = f"models/{FORMATS['torchscript'].file}"
MODELS = (*(kind.file for kind in FORMATS.values()), IN_BUNDLE)
TOLERANCE = 1e-3  # of the largest output, or of 1 if that is larger


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        folder: where.
        files: names in it, the model's first.
        model: format, digest and how it was compared with the network.
    """

    folder: Path
    files: tuple[str, ...]
    model: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "files": list(self.files), **self.model}

    def said(self) -> str:
        """How the file was compared, in one sentence."""
        name, seen = self.model["file"], self.model["compared"]
        if not seen["verified"]:
            return f"{name} is not verified: {seen['reason']}"
        return (
            f"{name} was run on random input: its outputs differ from the network's by at most "
            f"{seen['largest_difference']:.2g} (tolerance {seen['tolerance']:.2g})"
        )


def export_model(
    trained: Trained, out: Path, format: FormatName = "torchscript", *, overwrite: bool = False
) -> Exported:
    """Writes a model and its preprocessing into a folder.

    Args:
        trained: the model.
        out: the folder; made if need be.
        format: "torchscript", "onnx", or "bundle" (a MONAI bundle).
        overwrite: whether what an earlier export wrote there is replaced.

    Raises:
        ConfigError: an export is there already, or the format cannot hold what this model needs.
        MissingExtra: packages for the format are not installed.
        RunError: the file's outputs are not the network's, or it cannot be written.
    """
    recipe = trained.config.task.preprocessing()
    if format == "bundle":
        refuse_unlike(recipe, str(trained.folder.path))
    earlier = [name for name in (RECIPE, *MODELS) if (out / name).exists()]
    # Files of a bundle's names are ours only beside a bundle's model.
    if format == "bundle" or IN_BUNDLE in earlier:
        earlier += [name for name in BUNDLE if (out / name).exists()]
    if earlier and not overwrite:
        raise ConfigError(
            f"{earlier[0]} is there already",
            where=str(out),
            remedy="name another folder, or say --overwrite",
        )
    with tempfile.TemporaryDirectory(prefix="autofedavg-") as stage:
        model = _write_model(trained, Ports.of(recipe), Path(stage), format)
        content = {model["file"]: (Path(stage) / Path(model["file"]).name).read_bytes()}
    whole = {"schema": SCHEMA, "model": model, **recipe, "provenance": provenance(trained)}
    texts = bundle_files(whole) if format == "bundle" else {}
    texts[RECIPE] = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    content |= {name: text.encode() for name, text in texts.items()}
    with disk_errors(out, "export again, or name another folder with --out", every=True):
        for name in content:  # what cannot be written is refused before anything is replaced
            (out / name).parent.mkdir(parents=True, exist_ok=True)
        for name, written in content.items():  # last the JSON, which vouches for the model
            write_atomically(out / name, written)
        for name in set(earlier) - set(content):  # one folder holds one model, whatever its format
            (out / name).unlink()
            if name != Path(name).name and not any((out / name).parent.iterdir()):
                (out / name).parent.rmdir()
    return Exported(out, tuple(content), model)


def provenance(trained: Trained) -> dict[str, Any]:
    """Where a model comes from, for whoever meets its file alone."""
    about = read_json(trained.folder.path / "environment.json")
    here = environment("cpu")
    facts, config, row = trained.facts, trained.config, trained.config.values()
    return {
        "run": run_name(trained.folder.path),
        "row": config.name,
        "label": config.label,
        "task": row["task"]["name"],
        "method": row["method"]["name"],
        "seed": about.get("seed"),
        "checkpoint": trained.name,
        "tensors_sha256": facts["sha256"],
        "round": facts.get("t"),
        "score": facts.get("score"),
        "metric": about.get("metric"),
        "site": facts.get("site"),
        "ensemble_of": facts.get("sites"),
        "form": facts.get("form"),
        "data": about["data"],
        "trained_with": {key: about.get(key) for key in ("versions", "commit")},
        "exported_with": {key: here[key] for key in ("versions", "commit")},
    }


def largest_difference(run: Run, network: nn.Module, ports: Ports) -> dict[str, Any]:
    """How far a file's outputs lie from the network's, on random inputs of two sizes."""
    draw = Seeds(0).generator("export", Purpose.DATA)
    apart, size, shapes = 0.0, 1.0, []
    with torch.no_grad():
        for shape in (ports.small(), ports.large()):
            image = torch.randn(shape, generator=draw)
            wanted, found = network(image), run(image)
            shapes.append(list(shape))
            size = max(size, _largest(wanted))
            same = wanted.shape == found.shape and wanted.dtype == found.dtype
            apart = max(apart, _largest(wanted - found) if same else float("inf"))
    return {"largest_difference": apart, "tolerance": TOLERANCE * size, "shapes": shapes}


def _largest(values: Tensor) -> float:
    """The largest size of a number, infinite where one is none."""
    return float(values.abs().nan_to_num(nan=torch.inf).max())


def _write_model(trained: Trained, ports: Ports, stage: Path, format: str) -> dict[str, Any]:
    """Writes the file, reads it back and compares; returns what is to be known of it."""
    network = trained.network
    if isinstance(network, Ensemble):
        network = network.unrolled()
    kind = FORMATS["torchscript" if format == "bundle" else format]
    path = stage / kind.file
    try:
        written = kind.write(network.eval().requires_grad_(False), ports, path)
        run = kind.load(path, ports)
    except AutoFedAvgError:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"this network cannot be written as {format} ({said})",
            where=str(trained.folder.path),
            remedy="try another --format",
        ) from error
    compared: dict[str, Any] = {"verified": False, "reason": "onnxruntime is not installed"}
    if run is not None:
        compared = {"verified": True, **largest_difference(run, trained.network, ports)}
        if not compared["largest_difference"] <= compared["tolerance"]:
            raise RunError(
                f"the outputs of {kind.file} differ from the network's by "
                f"{compared['largest_difference']:.3g}, more than {compared['tolerance']:.3g}; it "
                "was not kept",
                where=str(trained.folder.path),
                remedy="try another --format, or another version of torch",
            )
    return {
        "format": format,
        "file": IN_BUNDLE if format == "bundle" else kind.file,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **written,
        "compared": compared,
    }
