"""Three hospitals that each have only their own data, and a canary in all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

CANARY = "canary-Zw7q"
SITES = ("north", "south", "west")

STUDY = """
[study]
name = "hospitals"

[base]
rounds = 2

[base.task]
name = "datalist"
datalist = "all/list.csv"

[base.task.pipeline]
channels = [4, 8, 8]

[base.training]
iterations = 3
batch_size = 2
learning_rate = 2e-3

[[run]]
name = "auto-fedavg"
method = { name = "auto-fedavg", S = 2, t0 = 1 }
"""


def build_hospitals(folder: Path) -> tuple[Path, dict[str, Path]]:
    """A study over a list of everything, and every site's own file with its own list.

    The canary stands in names of folders and files, in the metadata and the first pixels of images
    and labels.
    """
    everything = ["site,image,label"]
    files = {}
    for place, site in enumerate(SITES):
        home = folder / f"{site}-{CANARY}"
        home.mkdir(parents=True)
        own = ["site,image,label"]
        for number in range(6):
            image, label = _picture(place, number)
            names = [f"scan {CANARY} {number}.png", f"mask {CANARY} {number}.png"]
            said = PngInfo()
            said.add_text("patient", CANARY)
            Image.fromarray(image).save(home / names[0], pnginfo=said)
            Image.fromarray(label).save(home / names[1], pnginfo=said)
            own.append(f"{site},{names[0]},{names[1]}")
            everything.append(f"{site},../{home.name}/{names[0]},../{home.name}/{names[1]}")
        (home / "list.csv").write_text("\n".join(own), encoding="utf-8")
        files[site] = home / "autofedavg.toml"
        files[site].write_text('[task]\ndatalist = "list.csv"\ncache = "cache"\n')
    (folder / "all").mkdir()
    (folder / "all" / "list.csv").write_text("\n".join(everything), encoding="utf-8")
    study = folder / "study.toml"
    study.write_text(STUDY.replace('list.csv"', 'list.csv"\nallow_outside = true'))
    return study, files


def _picture(place: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([place, number])
    rows, columns = np.mgrid[:40, :44]
    centre, radius = random.uniform(14, 26, 2), random.uniform(7, 11)
    inside = np.hypot(rows - centre[0], columns - centre[1]) < radius
    skin = np.array([[190, 150, 130], [150, 120, 110], [200, 180, 120]][place])
    image = np.where(inside[..., None], skin * [0.6, 0.35, 0.3], skin)
    image = np.clip(image + random.normal(0, 8, image.shape), 0, 255).astype(np.uint8)
    letters = np.frombuffer(CANARY.encode(), np.uint8)
    image.reshape(-1)[: len(letters)] = letters
    return image, inside.astype(np.uint8) * 255
