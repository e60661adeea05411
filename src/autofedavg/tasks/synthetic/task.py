"""Three generated hospitals whose scans differ as real ones do.

Sizes follow the paper's COVID-19 study (671, 88 and 186 scans); `phantoms` draws the scans.
Volumes are written as NIfTI files once and take the same steps as real CT.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import nibabel as nib
import numpy as np
from pydantic import model_validator

from autofedavg.core.problem import SERVER, LocalData, Problem
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.settings import setting
from autofedavg.tasks.base import Progress
from autofedavg.tasks.imaging.cache import cache_home, is_folder, new_folder, writing
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.preparation import BINARY, Case, Classes
from autofedavg.tasks.imaging.segmentation import SegmentationSite, loss
from autofedavg.tasks.imaging.segmenter import ImageSegmenter
from autofedavg.tasks.imaging.task import CaseFiles, SegmentationTask
from autofedavg.tasks.synthetic.phantoms import HOSPITALS, SERVER_HOSPITAL, VERSION, Hospital, scan


class SyntheticPipeline(Pipeline):
    """The pipeline's settings at the size of the generated volumes."""

    spacing: tuple[float, float, float] = setting(
        (1.25, 1.25, 3.0), origin="ours", help="common voxel spacing in mm"
    )
    window: tuple[float, float] = setting(
        (-300.0, 400.0), origin="ours", help="intensities mapped to [0, 1], clipped"
    )
    roi: tuple[int, int, int] = setting(
        (32, 32, 16), origin="ours", help="size of training crops and of the window"
    )
    overlap: float = setting(0.25, origin="ours", help="overlap of sliding windows", ge=0, lt=1)
    channels: tuple[int, ...] = setting(
        (8, 16, 32), origin="ours", help="U-Net widths, top to bottom"
    )


class Synthetic(SegmentationTask):
    """Lesions in three generated hospitals."""

    paths: ClassVar[tuple[str, ...]] = ("cache",)
    private_names: ClassVar[bool] = False

    name: Literal["synthetic"] = "synthetic"
    seed: int = setting(0, origin="ours", help="seed of the volumes, apart from the run's", ge=0)
    scale: float = setting(
        0.2, origin="ours", help="cases as a share of the paper's 671, 88 and 186", gt=0, le=1
    )
    extent: tuple[float, float, float] = setting(
        (50.0, 50.0, 48.0), origin="ours", help="size of a volume in mm"
    )
    holdout: float = setting(
        0.0, origin="ours: decision 3", help="share of training cases set aside", ge=0, lt=1
    )
    proxy: int = setting(
        0, origin="ours", help="cases at the server, of a hospital that is no site", ge=0
    )
    cache: str = setting(
        "", origin="ours", help="folder for the volumes; the user's cache folder when empty"
    )
    pipeline: SyntheticPipeline = setting(
        SyntheticPipeline(), origin="ours", help="from volumes to batches and scores"
    )

    @model_validator(mode="after")
    def _large_enough(self) -> Synthetic:
        if min(self.extent) < 20:
            raise ValueError("extent must be at least 20 mm in every direction")
        return self

    def site_names(self) -> list[str]:
        return list(HOSPITALS)

    def split(self) -> dict[str, dict[str, list[str]]]:
        """Site -> split -> case ids."""
        table = {}
        for site, hospital in HOSPITALS.items():
            counts = [max(1, round(n * self.scale)) for n in hospital.paper_split]
            ids = [f"{site}-{number:04d}" for number in range(sum(counts))]
            train, rest = ids[: counts[0]], ids[counts[0] :]
            aside = max(1, round(len(train) * self.holdout)) if self.holdout else 0
            table[site] = {
                "train": train[: len(train) - aside],
                "holdout": train[len(train) - aside :],
                "validation": rest[: counts[1]],
                "test": rest[counts[1] :],
            }
        return table

    def outline(self) -> dict[str, Any]:
        table = self.split()
        digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
        cases = {s: {k: len(v) for k, v in parts.items()} for s, parts in table.items()}
        size = " x ".join(f"{length:g}" for length in self.extent)
        named = self.named(f"synthetic hospitals, version {VERSION}, seed {self.seed}, {size} mm")
        own = {"proxy": self.proxy} if self.proxy else {}
        return {"data": named, "cases": cases, "split_sha256": digest, **own}

    def form(self) -> tuple[Pipeline, int, Classes]:
        return self.pipeline, 1, BINARY

    def segmenter(self) -> ImageSegmenter:
        return ImageSegmenter(self.pipeline, 1, ["lesion"])

    def problem(self, progress: Progress | None = None) -> Problem:
        return replace(super().problem(progress), proxy=self._server_data(progress))

    def server_problem(self) -> Problem:
        return replace(
            super().server_problem(), loss=loss(self.pipeline), proxy=self._server_data(None)
        )

    def _server_data(self, progress: Progress | None) -> LocalData | None:
        """The server's own cases; None if the settings ask for none."""
        if not self.proxy:
            return None
        names = [f"{SERVER}-{number:04d}" for number in range(self.proxy)]
        folder = self._home() / self._digest(f"{asdict(SERVER_HOSPITAL)}-{self.proxy}")
        made = self._written(folder, ((SERVER_HOSPITAL, name) for name in names), progress)
        store = self.store()
        ready = [store.prepare(_case(made, name, "train")) for name in names]
        for case in ready:
            case.hold()
        return SegmentationSite(
            SERVER, {"train": ready}, self.pipeline, [*BINARY], 1 / len(HOSPITALS)
        )

    def case_files(self, progress: Progress | None = None) -> CaseFiles:
        made = self._generate(progress)
        return {
            site: [_case(made, name, split) for split, names in parts.items() for name in names]
            for site, parts in self.split().items()
        }

    def memory(self) -> int:
        voxels = np.prod(np.array(self.extent) / np.array(self.pipeline.spacing))
        cases = sum(len(ids) for parts in self.split().values() for ids in parts.values())
        cases += self.proxy
        # float16 image, uint8 label, and the label on its own grid.
        return int(cases * voxels * (2 + 1 + 2))

    def where(self) -> str:
        folder = self.folder()
        return f"in {folder}" if is_folder(folder) else f"will be generated in {folder}"

    def folder(self) -> Path:
        """The folder of these volumes; its name is a digest of all that they depend on."""
        looks = json.dumps({name: asdict(h) for name, h in HOSPITALS.items()}, sort_keys=True)
        return self._home() / self._digest(f"{self.scale}-{looks}")

    def _home(self) -> Path:
        return Path(self.cache) if self.cache else cache_home()

    def _digest(self, about: str) -> str:
        key = f"{VERSION}-{self.seed}-{self.extent}-{about}"
        return "synthetic-" + hashlib.sha256(key.encode()).hexdigest()[:12]

    def _generate(self, progress: Progress | None) -> Path:
        """The folder with the sites' volumes, generated on the first call."""
        wanted = (
            (HOSPITALS[site], case)
            for site, parts in self.split().items()
            for ids in parts.values()
            for case in ids
        )
        return self._written(self.folder(), wanted, progress)

    def _written(
        self, folder: Path, cases: Iterable[tuple[Hospital, str]], progress: Progress | None
    ) -> Path:
        """The folder with these volumes, generated on the first call."""
        if is_folder(folder):
            return folder
        wanted = list(cases)
        with writing(folder.parent, "the volumes"), new_folder(folder, is_folder) as making:
            for done, (hospital, case) in enumerate(wanted, 1):
                random = Seeds(self.seed).numpy(case, Purpose.DATA)
                image, label = scan(hospital, self.extent, random)
                affine = np.diag([*hospital.spacing, 1.0])
                for kind, values in (("image", image), ("label", label)):
                    nib.save(nib.Nifti1Image(values, affine), making / f"{case}_{kind}.nii.gz")
                if progress:
                    progress("generating volumes", done, len(wanted))
        return folder


def _case(folder: Path, name: str, split: str) -> Case:
    image, label = (folder / f"{name}_{kind}.nii.gz" for kind in ("image", "label"))
    return Case(name, split, (image,), label)
