"""Segmentation of medical volumes with MONAI: the chain every image task goes through.

load -> RAS -> common spacing -> window -> pad | crops balanced between foreground and background,
flips, intensity shift | U-Net, Dice loss | sliding window -> probabilities back on the original
grid -> Dice per case. Deterministic steps run once per case and stay in memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from autofedavg.client import CaseScore
from autofedavg.seeds import Purpose, Seeds
from autofedavg.tasks.preparation import Pipeline, Prepared
from autofedavg.workbench import Training

with warnings.catch_warnings():
    # MONAI warns of optional packages while it is imported.
    warnings.simplefilter("ignore")
    from monai.data import MetaTensor
    from monai.inferers import SlidingWindowInferer
    from monai.losses import DiceLoss
    from monai.networks.nets import UNet
    from monai.transforms import (
        SpatialResample,
    )
    from monai.transforms.utils import generate_pos_neg_label_crop_centers


def unet(channels: Sequence[int]) -> nn.Module:
    """The 3D U-Net: two output channels (background, foreground), instance norm."""
    network: nn.Module = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=tuple(channels),
        strides=(2,) * (len(channels) - 1),
    )
    return network


_dice = DiceLoss(to_onehot_y=True, softmax=True, squared_pred=True, include_background=False)


def dice_loss(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Dice loss with squared denominators (V-Net's), foreground only."""
    image, label = batch
    device = next(network.parameters()).device
    loss: Tensor = _dice(network(image.to(device)).float(), label.to(device))
    return loss


def dice(prediction: Tensor, label: Tensor) -> float:
    """Dice of two masks; two empty masks agree fully, one empty mask not at all (decision 9)."""
    together = int(prediction.sum()) + int(label.sum())
    return 2 * int((prediction & label).sum()) / together if together else 1.0


class SegmentationSite:
    """One site's cases as a client sees them."""

    def __init__(self, site: str, cases: Mapping[str, Sequence[Prepared]], how: Pipeline) -> None:
        self.site, self._cases, self._how = site, cases, how
        self._infer = SlidingWindowInferer(
            how.roi, sw_batch_size=8, overlap=how.overlap, mode="gaussian"
        )
        self._resample = SpatialResample(
            mode="bilinear", padding_mode="border", align_corners=False, dtype=torch.float32
        )

    def cases(self) -> Mapping[str, int]:
        return {split: len(cases) for split, cases in self._cases.items()}

    def settle(self, device: torch.device) -> None:
        """Volumes stay where they are: only crops travel."""

    def train_batches(
        self, seeds: Seeds, t: int, training: Training
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for step, picks in enumerate(self._picks(seeds, t, training)):
            random = seeds.numpy(self.site, Purpose.TRANSFORMS, t, step)
            yield self._batch("train", picks, random, augment=True)

    def weight_batch(
        self, seeds: Seeds, t: int, s: int, split: str, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        random = seeds.numpy(self.site, Purpose.AGGREGATE_BATCHES, t, s)
        picks = random.randint(len(self._cases[split]), size=batch_size)
        return self._batch(split, picks, random, augment=False)

    def score(self, network: nn.Module, split: str) -> list[CaseScore]:
        scores = []
        for case in self._cases[split]:
            mask = self.predict(network, case)
            label = case.original.bool()
            scores.append(CaseScore(case.case, "dice", dice(mask, label)))
            scores.append(CaseScore(case.case, "label_voxels", float(label.sum())))
        return scores

    def predict(self, network: nn.Module, case: Prepared) -> Tensor:
        """The predicted mask on the case's original grid."""
        device = next(network.parameters()).device
        logits = self._infer(case.image[None].to(device), network)
        chance = torch.softmax(logits[0].float(), dim=0)[1:].cpu()
        back = self._resample(
            MetaTensor(chance, affine=case.affine),
            dst_affine=case.original_affine,
            spatial_size=case.original.shape[1:],
        )
        mask: Tensor = back.as_tensor() > 0.5
        return mask

    def _picks(self, seeds: Seeds, t: int, training: Training) -> Iterator[np.ndarray]:
        """Which cases each batch of a round holds: random ones, or whole passes in random order."""
        random = seeds.numpy(self.site, Purpose.TRAIN_BATCHES, t)
        n, size = len(self._cases["train"]), training.batch_size
        for _ in range(training.iterations):
            yield random.randint(n, size=size)
        for _ in range(training.epochs):
            order = random.permutation(n)
            yield from (order[start : start + size] for start in range(0, n, size))

    def _batch(
        self, split: str, picks: np.ndarray, random: np.random.RandomState, augment: bool
    ) -> tuple[Tensor, Tensor]:
        cases = self._cases[split]
        crops = [self._crop(cases[pick], random, augment) for pick in picks]
        images, labels = zip(*crops, strict=True)
        return torch.stack(images), torch.stack(labels)

    def _crop(
        self, case: Prepared, random: np.random.RandomState, augment: bool
    ) -> tuple[Tensor, Tensor]:
        how = self._how
        (centre,) = generate_pos_neg_label_crop_centers(
            how.roi,
            1,
            how.foreground,
            case.label.shape[1:],
            case.foreground,
            case.background,
            random,
        )
        box = (
            slice(None),
            *(
                slice(int(c) - r // 2, int(c) - r // 2 + r)
                for c, r in zip(centre, how.roi, strict=True)
            ),
        )
        image, label = case.image[box], case.label[box]
        if augment:
            axes = [axis for axis in (1, 2, 3) if random.random_sample() < how.flip]
            if axes:
                image, label = image.flip(axes), label.flip(axes)
            if random.random_sample() < 0.5:
                image = image + random.uniform(-how.shift, how.shift)
        return image, label
