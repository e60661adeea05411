"""CIFAR-10 divided among clients as in FedMA's benchmark: the paper's Table 1.

Test shards, holdout variants and the missing validation split are decision 18.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator
from torch import nn

from autofedavg.core.errors import DataError
from autofedavg.core.problem import SERVER, LocalData, Problem
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.settings import setting
from autofedavg.tasks.base import Progress, Task
from autofedavg.tasks.cifar import files
from autofedavg.tasks.cifar.files import Cifar10Data, LabelledImages
from autofedavg.tasks.cifar.network_input import cifar_logits, cifar_loss, recipe
from autofedavg.tasks.cifar.partition import heterogeneous, homogeneous
from autofedavg.tasks.cifar.site import CifarSite
from autofedavg.tasks.cifar.vgg9 import vgg9
from autofedavg.tasks.imaging.cache import data_home

Split = dict[str, dict[str, np.ndarray]]


class Cifar10(Task):
    """Classification of 32 x 32 images in ten classes, by VGG-9."""

    paths: ClassVar[tuple[str, ...]] = ("root",)
    may_lack_validation: ClassVar[bool] = True
    metric: ClassVar[str] = "accuracy"
    private_names: ClassVar[bool] = False

    name: Literal["cifar10"] = "cifar10"
    root: str = setting(
        "",
        origin="ours",
        help="folder of the official files; $AUTOFEDAVG_DATA/cifar10 or data/cifar10 when empty",
    )
    clients: int = setting(16, origin="paper Sec. 4.1", help="K, number of clients", ge=1)
    partition: Literal["heterogeneous", "homogeneous"] = setting(
        "heterogeneous", origin="paper Sec. 4.1", help="how images are dealt out: both are FedMA's"
    )
    concentration: float = setting(
        0.5,
        origin="derived from FedMA's code",
        help="Dirichlet concentration of the heterogeneous partition",
        gt=0,
    )
    partition_seed: int = setting(
        0, origin="derived from FedMA's code", help="seed of the partition, apart from the run's",
        ge=0, lt=2**32,
    )  # fmt: skip
    holdout: float = setting(
        0.0,
        origin="ours: decision 18",
        help="share of each client's images set aside: its last ones",
        ge=0,
        lt=1,
    )
    holdout_images: int = setting(
        0,
        origin="ours: decision 18",
        help="number of each client's images set aside, instead of a share",
        ge=0,
    )
    train_on_holdout: bool = setting(
        False, origin="ours: decision 18", help="train also on the images set aside"
    )
    proxy: int = setting(
        0,
        origin="ours",
        help="training images at the server, drawn before the rest are dealt out",
        ge=0,
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Cifar10:
        if self.holdout and self.holdout_images:
            raise ValueError("set either holdout or holdout_images, the other one to 0")
        if self.train_on_holdout and not self.has("holdout"):
            raise ValueError("train_on_holdout needs holdout or holdout_images above 0")
        return self

    def has(self, split: str) -> bool:
        if split == "proxy":
            return bool(self.proxy)
        return split in ("train", "test") or bool(self.holdout or self.holdout_images)

    def site_names(self) -> list[str]:
        digits = max(2, len(str(self.clients - 1)))
        return [f"client-{number:0{digits}d}" for number in range(self.clients)]

    def network(self) -> nn.Module:
        return vgg9(len(files.CLASSES))

    def preprocessing(self) -> dict[str, Any]:
        return recipe(files.CLASSES)

    def memory(self) -> int:
        images = len(files.BATCHES) * files.OFFICIAL_RECORDS
        return images * (files.PIXELS + 8)  # a label is an int64

    def where(self) -> str:
        folder = self.folder()
        found = files.find(folder)
        if found is None:
            return f"missing: unpack {files.ARCHIVES['binary']} from {files.PAGE} in {folder}"
        missing = found.missing()
        lacks = f", without {', '.join(missing)}" if missing else ""
        return f"in {found.folder} ({found.layout} layout){lacks}"

    def folder(self) -> Path:
        """The folder of the files."""
        return Path(self.root) if self.root else data_home("cifar10")

    def problem(self, progress: Progress | None = None) -> Problem:
        data = files.read(self.folder(), progress)
        sites: dict[str, LocalData] = {}
        for site, parts in self.split(data).items():
            local = parts["train"]
            if not self.train_on_holdout:
                local = np.concatenate([local, parts["holdout"]])
            sites[site] = CifarSite(
                site,
                _taken(data.train, local),
                [f"train-{index:05d}" for index in local],
                _taken(data.test, parts["test"]),
                [f"test-{index:05d}" for index in parts["test"]],
                len(parts["holdout"]),
                self.train_on_holdout,
            )
        return self._problem(data, sites)

    def server_problem(self) -> Problem:
        return (
            self._problem(files.read(self.folder()), {}) if self.proxy else super().server_problem()
        )

    def _problem(self, data: Cifar10Data, sites: dict[str, LocalData]) -> Problem:
        """The problem of these sites, and of the server's own images if there are any."""
        own = self.server_images(data)
        proxy = None
        if len(own):
            names = [f"train-{index:05d}" for index in own]
            nothing = _taken(data.test, own[:0])
            proxy = CifarSite(SERVER, _taken(data.train, own), names, nothing, [], 0, False)
        return Problem(
            self.network,
            cifar_loss,
            sites,
            self.metric,
            steady=True,
            logits=cifar_logits,
            proxy=proxy,
        )

    def server_images(self, data: Cifar10Data) -> np.ndarray:
        """Indices of the server's training images: a random draw of the partition's seed."""
        count = len(data.train.labels)
        if self.proxy >= count:
            raise DataError(
                f"{self.proxy} images at the server leave none of {count} to the clients",
                where=str(data.found.folder),
                remedy="lower task.proxy",
            )
        random = Seeds(self.partition_seed).numpy(SERVER, Purpose.SPLIT)
        return np.sort(random.permutation(count)[: self.proxy])

    def split(self, data: Cifar10Data) -> Split:
        """Site -> split -> indices of images, in the official order of the files."""
        left = np.delete(np.arange(len(data.train.labels)), self.server_images(data))
        labels, K = data.train.labels[left], self.clients
        if self.partition == "heterogeneous":
            shares = heterogeneous(labels, K, self.concentration, self.partition_seed)
        else:
            shares = homogeneous(len(labels), K, self.partition_seed)
        shares = [left[share] for share in shares]
        if len(data.test.labels) < K:
            raise DataError(
                f"{len(data.test.labels)} test images are too few for {K} clients",
                where=str(data.found.folder),
                remedy="use fewer clients",
            )
        shards = np.array_split(np.arange(len(data.test.labels)), K)
        table: Split = {}
        for site, share, shard in zip(self.site_names(), shares, shards, strict=True):
            kept = len(share) - self._aside(site, len(share))
            table[site] = {
                "train": share if self.train_on_holdout else share[:kept],
                "holdout": share[kept:],
                "validation": share[kept:],
                "test": shard,
            }
        return table

    def _aside(self, site: str, n: int) -> int:
        """The number of a client's n images in the holdout."""
        share = max(1, round(n * self.holdout)) if self.holdout else 0
        aside = self.holdout_images or share
        if self.train_on_holdout:
            return min(aside, n)
        if aside >= n:
            raise DataError(
                f"the holdout would take {aside} of its {n} images and leave none to train on",
                where=f"site {site}",
                remedy="lower task.holdout or task.holdout_images",
            )
        return aside

    def describe(self) -> dict[str, Any]:
        data = files.read(self.folder())
        split = self.split(data)
        lists = {
            site: {part: indices.tolist() for part, indices in parts.items()}
            for site, parts in split.items()
        }
        # The images too: the same indices into other files are other cases.
        identity = json.dumps({"images": data.md5, "split": lists}, sort_keys=True)
        known = "CIFAR-10, official bytes"
        other = "CIFAR-10 layout, not the official bytes"
        return {
            "data": known if all(data.official().values()) else other,
            "layout": data.found.layout,
            "cases": {
                site: {part: len(indices) for part, indices in parts.items()}
                for site, parts in split.items()
            },
            # Images that are in two splits count once: what a table's heading shows.
            "sizes": {
                site: len(np.union1d(parts["train"], parts["holdout"])) + len(parts["test"])
                for site, parts in split.items()
            },
            "validation_is": "holdout",
            **({"proxy": self.proxy} if self.proxy else {}),
            "split_sha256": hashlib.sha256(identity.encode()).hexdigest(),
        }

    def about(self) -> str:
        """What to download, under which terms, and where to put it."""
        return (
            "CIFAR-10: 60,000 images of 32 x 32 pixels in ten classes (A. Krizhevsky, Learning\n"
            "Multiple Layers of Features from Tiny Images, technical report, University of\n"
            "Toronto, 2009).\n"
            f"Download {files.ARCHIVES['binary']} (or {files.ARCHIVES['python']}) from\n"
            f"{files.PAGE}\n"
            f"and unpack it in {self.folder()}.\n"
            "No licence is stated there; the page asks to cite the technical report."
        )

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Reads all files and describes them; raises a DataError that lists every unusable file."""
        data = files.read(self.folder(), progress)
        lines = [f"{data.found.layout} layout in {data.found.folder}"]
        for what, pictures in (("training", data.train), ("test", data.test)):
            counts = np.bincount(pictures.labels, minlength=len(files.CLASSES))
            counted = zip(files.CLASSES, counts, strict=True)
            by_class = ", ".join(f"{name} {count}" for name, count in counted)
            lines.append(f"{len(pictures.labels)} {what} images: {by_class}")
        for batch, official in data.official().items():
            same = "the official bytes" if official else "not the official bytes"
            lines.append(f"{data.found.file(batch).name}: {same}")
        return lines


def _taken(pictures: LabelledImages, indices: np.ndarray) -> LabelledImages:
    return LabelledImages(pictures.images[indices], pictures.labels[indices])
