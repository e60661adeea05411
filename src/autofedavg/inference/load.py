"""A trained model of a run folder: its network with the weights, and the row it was trained by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from autofedavg.core.errors import ConfigError, RunError, did_you_mean
from autofedavg.core.seeds import global_seed
from autofedavg.experiment.archive_reader import archive_at
from autofedavg.experiment.checkpoint_names import site_name, without_round
from autofedavg.experiment.config import parse_run
from autofedavg.experiment.files import naming
from autofedavg.experiment.folder import LOADERS, read_toml, run_paths
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.models import load_network
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.selection import KINDS


@dataclass(frozen=True)
class Trained:
    """A network ready to predict, and the run that it comes from.

    Attributes:
        name: of its checkpoint, without the round: "best-global".
        network: in evaluation mode, on the CPU.
        facts: what its checkpoint says: the round, the validation score, the tensors' SHA-256.
    """

    folder: RunFolder
    name: str
    config: RunConfig
    network: nn.Module
    facts: dict[str, Any]


def load_trained(path: Path, model: str = "global") -> Trained:
    """Reads a trained model.

    Args:
        path: a run folder, a folder with one run below it, or a checkpoint's file.
        model: "global", "local-<site>" for the model that a site trained last before averaging,
            or "personal-<site>"; not with a checkpoint's file.

    Raises:
        ConfigError: `model` was given beside a checkpoint's file.
        RunError: there is no such model, or it is damaged.
    """
    if archive_at(path):
        remedy = "name the folder of the run itself"
        raise RunError("an archive holds no models", where=str(path), remedy=remedy)
    if path.is_file():
        folder, stem = RunFolder(path.parent.parent), path.stem
        known = path.parent.name == "checkpoints" and stem.partition("-")[0] in KINDS.values()
        if not known or not path.with_name(f"{stem}.json").is_file():
            raise RunError(
                "this file is no model of a run folder",
                where=str(path),
                remedy="name a run folder, or a best-... or final-... file in its checkpoints",
            )
        if model != "global":
            raise ConfigError(
                f"the model {model!r} is asked for, and the file of one is named",
                where=str(path),
                remedy="name the run folder instead, or leave --model out",
            )
    else:
        folder = _only_run(path)
        stem = folder.checkpoints.written(_checkpoint(folder, model))
    values = read_toml(folder.path / "config.toml")
    if values.get("task", {}).get("name") == LOADERS:
        raise RunError(
            "this model was trained from Python, with a network this package does not know",
            where=str(folder.path),
            remedy=f"build the network yourself and read the tensors of {stem}.safetensors",
        )
    config = parse_run(values, str(folder.path))
    try:
        with global_seed(0):  # its first weights are drawn, and then replaced
            built = config.task.network()
        place = folder.path / "checkpoints" / f"{stem}.json"
        with naming(place, "this checkpoint holds no model", "apply another one"):
            network = load_network(folder, stem, built)
    except RuntimeError as error:
        raise RunError(
            "this checkpoint holds another network than its run's settings make",
            where=str(folder.path / "checkpoints" / stem),
            remedy="use the version of autofedavg and of MONAI that environment.json names",
        ) from error
    facts = folder.load(stem).facts
    return Trained(folder, without_round(stem), config, network.eval(), facts)


def _only_run(path: Path) -> RunFolder:
    found = run_paths([path], "name a run folder, or a checkpoint's file in one")
    if len(found) > 1:
        listed = ", ".join(map(str, found[:5]))
        raise RunError(
            f"there are {len(found)} runs below this folder",
            where=str(path),
            remedy=f"name one of them: {listed}{', ...' if len(found) > 5 else ''}",
        )
    return RunFolder(found[0])


def _checkpoint(folder: RunFolder, model: str) -> str:
    """The checkpoint of a model; a run has the best ones or the final ones."""
    whose: Literal["local", "personal"] = "local"
    if model.startswith("personal-"):
        whose = "personal"
    site = model.removeprefix(f"{whose}-")
    for kind in KINDS.values():
        name = f"{kind}-global" if model == "global" else site_name(kind, whose, site)
        if folder.has(name):
            return name
    known = {without_round(stem).partition("-")[2] for stem in folder.checkpoints.models()}
    raise RunError(
        f"there is no model {model!r} in this run",
        where=str(folder.path),
        remedy=did_you_mean(model, known)
        if known
        else "let the run go on until a model is selected; archives hold no models",
    )
