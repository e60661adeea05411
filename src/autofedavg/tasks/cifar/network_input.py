"""From CIFAR-10's bytes to the network's input, its output and the loss: FedMA's pipeline.

The loss augments the whole batch at once: reflect-pad by 4, crop 32 x 32, flip with probability
1/2, normalise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZE = 32
CLASSES = 10
PAD = 4
MEAN = (125.3, 123.0, 113.9)  # of a channel, on the scale of the bytes
STD = (63.0, 62.1, 66.7)

CifarBatch = tuple[Tensor, Tensor, Tensor, Tensor]


def cifar_loss(network: nn.Module, batch: CifarBatch) -> Tensor:
    """Cross entropy of a batch, cropped, flipped and normalised on the network's device.

    Args:
        network: from (B, 3, 32, 32) to (B, 10).
        batch: images (B, 3, 32, 32) in bytes, labels (B,), shift (B, 2) in 0..8 down and to the
            right within the padded image (4 and 4 leave it in place), flip (B,).
    """
    logits = cifar_logits(network, batch)
    return functional.cross_entropy(logits.float(), batch[1].to(logits.device))


def cifar_logits(network: nn.Module, batch: CifarBatch) -> Tensor:
    """The outputs (B, 10) for a batch, cropped, flipped and normalised."""
    device = next(network.parameters()).device
    images, _, shift, flip = (part.to(device) for part in batch)
    logits: Tensor = network(normalise(augment(images, shift, flip)))
    return logits


def augment(images: Tensor, shift: Tensor, flip: Tensor) -> Tensor:
    """Reflect-pads by 4, crops and flips every image by its own numbers."""
    device = images.device
    steps = torch.arange(SIZE, device=device) - PAD
    rows = _reflected(shift[:, :1] + steps)
    columns = _reflected(shift[:, 1:] + steps)
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    image = torch.arange(len(images), device=device)
    channel = torch.arange(images.shape[1], device=device)
    return images[
        image[:, None, None, None],
        channel[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def normalise(images: Tensor) -> Tensor:
    """Bytes to numbers of about zero mean and unit variance, per channel."""
    mean, std = _statistics(images.device)
    return (images.float() - mean) / std


def _reflected(place: Tensor) -> Tensor:
    """Positions outside the image, mirrored at its first and last line."""
    inside = place.abs()
    return torch.minimum(inside, 2 * (SIZE - 1) - inside)


@cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation on a device, copied once: a copy in every step would wait."""
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return mean, std


def recipe(classes: Sequence[str]) -> dict[str, Any]:
    """The steps from pictures to the network's input, and from its output to a class."""
    return {
        "kind": "classification",
        "input": {
            "name": "image",
            "dtype": "float32",
            "axes": ["batch", "channel", "rows", "columns"],
            "shape": [None, len(MEAN), SIZE, SIZE],
            "multiple_of": None,
            "image": "a picture of bytes, 0 to 255; channels red, green, blue; the top row first",
        },
        "steps": [
            {
                "step": "normalise",
                "how": "fixed",
                "mean": list(MEAN),
                "std": list(STD),
                "rule": "channel by channel: (byte - mean) / std, in float32",
            }
        ],
        "output": {
            "name": "logits",
            "dtype": "float32",
            "axes": ["batch", "class"],
            "shape": [None, len(classes)],
            "classes": list(classes),
            "meaning": "softmax over the axis class gives chances that sum to one; the number of "
            "the largest is the class",
        },
    }
