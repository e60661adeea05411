"""Small models trained on data that is gone afterwards, as on another machine."""

import csv
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from autofedavg import read_study, run_study
from volumes import save_nifti

SPACING = (1.2, 1.3, 2.6)
STUDY = """
[study]
name = "own"

[base]
rounds = 3

[base.task]
name = "datalist"
datalist = "data/list.csv"
cache = "cache"
{task}

[base.training]
iterations = 20
batch_size = 4
learning_rate = 5e-3

[[run]]
name = "fedavg"
method = {{ name = "fedavg" }}
"""
SCANS = """
classes = { organ = [3], lesion = [1] }

[base.task.pipeline]
spacing = [1.5, 1.5, 2.5]
roi = [16, 16, 8]
channels = [6, 12]
strides = [[2, 2, 2]]
"""
PICTURES = """
[base.task.pipeline]
roi = [16, 16]
channels = [6, 12]
strides = [[2, 2]]
"""


def scene(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An organ (3) with a lesion (1) in it, off the middle: two channels and the label."""
    draw = np.random.default_rng(seed)
    size = (26, 24, 14)
    mm = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), -1) * SPACING
    centre = np.array([13.0, 12.0, 15.0]) + draw.uniform(-1.5, 1.5, 3)
    organ = np.linalg.norm((mm - centre) / (1, 0.8, 1.2), axis=-1) < 9
    lesion = np.linalg.norm(mm - centre - (3, 1, 2), axis=-1) < 4.5
    label = np.where(lesion, 1, np.where(organ, 3, 0)).astype(np.uint8)
    one = 100 + 200 * organ + draw.normal(0, 15, size)
    two = 500 + 400 * lesion + draw.normal(0, 30, size)
    return one.astype(np.float32), np.round(two).astype(np.int16), label


def picture(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A colour picture with a dark spot, and where the spot is."""
    draw = np.random.default_rng(seed)
    rows, columns = np.mgrid[:30, :40]
    spot = np.hypot(rows - draw.uniform(8, 16), columns - draw.uniform(10, 28)) < 6
    pixels = np.where(spot[..., None], (90, 40, 30), (190, 150, 130)) + draw.normal(
        0, 6, (30, 40, 3)
    )
    return np.clip(pixels, 0, 255).astype(np.uint8), spot.astype(np.uint8)


def train_scans(home: Path) -> Path:
    """The folder of a run on two-channel volumes; the images of its test cases are in home/kept."""

    def write(stem: Path, seed: int) -> tuple[str, str]:
        one, two, label = scene(seed)
        affine = np.diag([*SPACING, 1.0])
        names = [
            save_nifti(stem.with_name(f"{stem.name}_{part}.nii.gz"), values, affine).name
            for part, values in (("t1", one), ("t2", two), ("label", label))
        ]
        return "|".join(names[:2]), names[2]

    return _trained(home, SCANS, write)


def train_pictures(home: Path) -> Path:
    """The same for colour pictures."""

    def write(stem: Path, seed: int) -> tuple[str, str]:
        pixels, spot = picture(seed)
        Image.fromarray(pixels).save(stem.with_suffix(".png"))
        Image.fromarray(spot).save(stem.with_name(f"{stem.name}_label.png"))
        return f"{stem.name}.png", f"{stem.name}_label.png"

    return _trained(home, PICTURES, write)


def _trained(home: Path, task: str, write) -> Path:
    data = home / "data"
    data.mkdir()
    rows = ["site,case,split,image,label"]
    for place, site in enumerate(("north", "south")):
        for number, split in enumerate(("train", "train", "train", "validation", "test")):
            case = f"{site}{number}"
            image, label = write(data / case, 10 * place + number)
            rows.append(f"{site},{case},{split},{image},{label}")
    (data / "list.csv").write_text("\n".join(rows))
    (home / "study.toml").write_text(STUDY.format(task=task))
    folder = run_study(read_study(home / "study.toml"), home / "runs") / "fedavg" / "seed-0"
    kept = home / "kept"
    kept.mkdir()
    for path in [*data.glob("north4*"), *data.glob("south4*")]:
        shutil.copy(path, kept / path.name)
    shutil.rmtree(data)
    shutil.rmtree(home / "cache")
    return folder.rename(home / "moved")


def scores(folder: Path, model: str = "global") -> dict[tuple[str, str], float]:
    """(case, metric) -> value, as the run itself measured it."""
    with (folder / "scores.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    return {(row["case"], row["metric"]): float(row["value"]) for row in rows}


def dice(one: np.ndarray, two: np.ndarray) -> float:
    either = int(one.sum()) + int(two.sum())
    return 2 * int((one & two).sum()) / either if either else 1.0
