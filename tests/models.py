"""Run folders with a model in them, without a run: for what is done with trained models."""

from pathlib import Path

import numpy as np
import torch

from autofedavg.core.bank import Layout
from autofedavg.experiment.config import parse_run
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.models import save_model
from autofedavg.tasks.imaging.prediction import predict
from toy import seeded
from volumes import oblique, prepared, write_case

CLASSES = {"inner": (3,), "outer": (1,)}
GRID = (30, 26, 20)
VOLUMES = {
    "roi": [16, 16, 8],
    "channels": [4, 8],
    "strides": [],
    "overlap": 0.5,
    "normalise": "window",
    "window": [-200.0, 250.0],
    "spacing": [1.5, 1.2, 2.0],
}


def run_folder(
    home: Path, task: dict, method: dict | None = None
) -> tuple[RunFolder, torch.nn.Module]:
    """A run folder with its configuration and no model yet, and the task's network, seeded."""
    values = {"name": "row", "label": "A row", "task": task, "method": method or {"name": "fedavg"}}
    config = parse_run(values, "test")
    about = {"data": {"data": "made up", "cases": {"north": {"train": 4}}}, "metric": "dice",
             "seed": 5, "versions": {"autofedavg": "0.0.9"}, "commit": "abc"}  # fmt: skip
    folder = RunFolder.create(home, config.to_toml(), about)
    return folder, seeded(config.task.network, 3)


def save(folder: RunFolder, network: torch.nn.Module, name: str = "best-global") -> Path:
    """Writes the network as a checkpoint; returns the run's folder."""
    layout = Layout.of(network)
    save_model(folder, name, layout.read(network), layout, {"t": 3, "score": 0.25})
    return folder.path


def datalist(home: Path, **pipeline) -> dict:
    """Settings of a data list of volumes that leave nothing to the data: no file is read."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "list.csv").write_text("site,image,label\nnorth,a.nii.gz,b.nii.gz\n")
    return {
        "name": "datalist",
        "datalist": str(home / "list.csv"),
        "classes": {name: list(values) for name, values in CLASSES.items()},
        "image_channels": 1,
        "pipeline": {**VOLUMES, **pipeline},
    }


def volume_case(home: Path, empty: int):
    """A smooth volume with a margin of this intensity, on a grid that lies askew; its label."""
    random = np.random.default_rng(4)
    place = np.stack(np.meshgrid(*[np.linspace(0, 1, n) for n in GRID], indexing="ij"))
    waves = sum(
        np.sin(2 * np.pi * (random.uniform(-2, 2, 3) @ place.reshape(3, -1)) + random.uniform(0, 6))
        for _ in range(6)
    ).reshape(GRID)
    image = (80 * waves + random.normal(0, 8, GRID)).astype(np.int16)
    margin = np.ones(GRID, bool)
    margin[3:-2, 2:-4, 2:-1] = False
    image[margin] = empty
    label = (image > 60).astype(np.uint8) + 2 * (image > 120).astype(np.uint8)
    return write_case(home, "case", image, label, oblique((1.1, 1.3, 2.6), (1, 0, 2), (1, -1, 1)))


def lively(network: torch.nn.Module, task, case, home: Path) -> torch.Tensor:
    """Sets the last bias so that every class is predicted; returns the prediction."""
    how = task.pipeline.pipeline()
    ready = prepared(how, [case], home / "cache", CLASSES)[case.split][0]
    bias = [*network.parameters()][-1]
    with torch.no_grad():
        logits = network(ready.window(tuple(slice(0, 2 * n) for n in how.roi))[0][None])
        bias -= logits.transpose(0, 1).flatten(1).median(dim=1).values
    return predict(network, ready, how, len(CLASSES))
