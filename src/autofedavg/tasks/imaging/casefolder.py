"""One prepared case in its cache folder: written once, read whole or crop by crop."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autofedavg.tasks.imaging.image import Box, surrounded, within
from autofedavg.tasks.imaging.preparation import CaseArrays

CENTRES = 2**16  # voxels kept as centres of crops, all classes together


class PreparedCase:
    """A case in the cache, in memory once `hold` was called.

    Attributes:
        size: voxels along each axis of the prepared grid.
        low: every channel's smallest intensity: the value outside the image.
        nbytes: bytes in memory when held.
        affine: (4, 4) of the prepared grid; `original_affine` and `original_size` of the file's.
        moved: whether the prepared grid differs from the file's.
    """

    def __init__(self, case: str, folder: Path) -> None:
        self.case, self._folder = case, folder
        facts = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        self.facts: dict[str, Any] = facts
        self.size: tuple[int, ...] = tuple(facts["size"])
        self.original_size: tuple[int, ...] = tuple(facts["original_size"])
        self.channels, self.nbytes = int(facts["channels"]), int(facts["nbytes"])
        self.low, self.moved = list(facts["low"]), bool(facts["moved"])
        self.affine, self.original_affine = (
            np.array(facts[key]) for key in ("affine", "original_affine")
        )
        self._held: tuple[Tensor, Tensor] | None = None  # on the network's device
        self._label: Tensor | None = None  # on the CPU
        self._centres: list[np.ndarray] | None = None
        self._original: Tensor | None = None
        self._device = torch.device("cpu")

    @property
    def held(self) -> bool:
        return self._held is not None

    def hold(self) -> None:
        """Keeps the arrays in memory from now on."""
        image, label = (np.load(self._folder / f"{name}.npy") for name in ("image", "label"))
        self._label = torch.from_numpy(label)
        self._centres = [np.array(found) for found in self.centres()]
        self._original = self.original() if self.moved else self._label
        self._held = torch.from_numpy(image), self._label

    def settle(self, device: torch.device, *, move: bool = True) -> None:
        """Gives crops on a device from now on; `move` moves the held arrays there."""
        self._device = device
        if self._held is not None and move:
            image, label = self._held
            self._held = image.to(device), label.to(device)

    def crop(self, box: Box) -> tuple[Tensor, Tensor]:
        """Image (C, *box) float32 and label (1, *box) uint8 of a part."""
        image, label = self._held or map(self._mapped, ("image", "label"))
        return image[:, *box].float().to(self._device), label[box][None].to(self._device)

    def window(self, box: Box) -> tuple[Tensor, Tensor]:
        """`crop` for a box that may reach beyond the image, where there is background."""
        inner = within(box, self.size)
        image, label = self.crop(inner)
        return surrounded(image, inner, box, self.low), surrounded(label, inner, box, [0])

    def part(self, box: Box) -> Tensor:
        """(C, *box) float32: the image alone in a box that may reach beyond it."""
        return self.window(box)[0]

    def is_background(self, voxel: tuple[int, ...]) -> bool:
        label = self._mapped("label") if self._label is None else self._label
        return not label[voxel]

    def centres(self) -> list[np.ndarray]:
        """For every class, the flat indices of its voxels, or of a sample of them."""
        if self._centres is not None:
            return self._centres
        ends = np.cumsum(self.facts["centres"])
        if not ends[-1]:
            return [np.empty(0, np.int64) for _ in ends]
        return np.split(self._mapped("centres").numpy(), ends[:-1])

    def original(self) -> Tensor:
        """The label on the grid of the file, uint8."""
        if self._original is not None:
            return self._original
        if not self.moved:
            return torch.from_numpy(np.load(self._folder / "label.npy"))
        with np.load(self._folder / "original.npz") as found:
            return torch.from_numpy(found["label"])

    def _mapped(self, name: str) -> Tensor:
        # Copied on write, which never happens: PyTorch warns of arrays that cannot be written.
        return torch.from_numpy(np.load(self._folder / f"{name}.npy", mmap_mode="c"))


def write_case(folder: Path, made: CaseArrays, classes: int) -> None:
    """Writes the arrays of a case and, last, its facts."""
    np.save(folder / "image.npy", made.image)
    np.save(folder / "label.npy", made.label)
    if made.original is not None:
        np.savez_compressed(folder / "original.npz", label=made.original)
    draw = np.random.RandomState(0)
    most = max(1, CENTRES // classes)
    centres = []
    for number in range(1, classes + 1):
        found = np.flatnonzero(made.label == number)
        if len(found) > most:
            found = np.sort(draw.choice(found, most, replace=False))
        centres.append(found)
    np.save(folder / "centres.npy", np.concatenate(centres))
    original = 0 if made.original is None else made.original.nbytes
    kept = sum(found.nbytes for found in centres)
    facts = {
        "size": list(made.size),
        "channels": len(made.image),
        "low": made.low,
        "nbytes": made.image.nbytes + made.label.nbytes + original + kept,
        "moved": made.moved,
        "affine": made.affine.tolist(),
        "original_affine": made.original_affine.tolist(),
        "original_size": list(made.original_size),
        "centres": [len(found) for found in centres],
        "image_sha256": made.digests[0],
        "label_sha256": made.digests[1],
        "files": {f.name: f.stat().st_size for f in sorted(folder.iterdir())},
    }
    (folder / "case.json").write_text(json.dumps(facts), encoding="utf-8")


def is_whole(place: Path) -> bool:
    """Whether a prepared case is there and complete."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        facts = json.loads((place / "case.json").read_text(encoding="utf-8"))
        return all((place / f).stat().st_size == size for f, size in facts["files"].items())
    return False
