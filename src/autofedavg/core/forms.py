"""Layer widths: a plain chain of layers in other widths, and with its first layers frozen.

FedMA grows layers and freezes them one after another. A `Form` says how a network differs from the
task's own, and every model of such a network carries it. `methods.fedma.chain` checks that a
network is a plain chain.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Form:
    """How a chain differs from the task's own.

    Attributes:
        widths: outputs of every layer with weights, first to last.
        frozen: how many of the first layers are not trained.
    """

    widths: tuple[int, ...]
    frozen: int = 0

    def note(self) -> dict[str, Any]:
        """The form as plain values."""
        return {"widths": list(self.widths), "frozen": self.frozen}


def form_of(note: dict[str, Any] | None) -> Form | None:
    """The form that `Form.note` wrote; None for the task's own network."""
    return None if note is None else Form(tuple(note["widths"]), int(note["frozen"]))


def reshaped(network: nn.Module, form: Form) -> nn.Module:
    """A copy of a plain chain in another form, with zeros for weights."""
    weighted: list[tuple[str, Any]] = [
        (name, module) for name, module in network.named_modules() if "weight" in module._parameters
    ]
    shapes = weight_shapes([tuple(layer.weight.shape) for _, layer in weighted], form.widths)
    built = copy.deepcopy(network)
    for number, ((name, layer), shape) in enumerate(zip(weighted, shapes, strict=True)):
        for parameter, wanted in (("weight", shape), ("bias", shape[:1])):
            old = getattr(layer, parameter)
            fresh = torch.zeros(wanted, dtype=old.dtype, device=old.device)
            trained = number >= form.frozen
            setattr(built.get_submodule(name), parameter, nn.Parameter(fresh, trained))
        _set_widths(built.get_submodule(name), shape)
    return built


def weight_shapes(
    shapes: Sequence[tuple[int, ...]], widths: Sequence[int]
) -> list[tuple[int, ...]]:
    """The shapes of a chain's weights in other widths.

    Args:
        shapes: (outputs, inputs, ...) of every layer.
        widths: the new outputs of every layer.

    A layer behind a `Flatten` has a block of inputs per channel: 16 for VGG-9's first linear layer.
    """
    wanted = []
    for number, shape in enumerate(shapes):
        inputs = shape[1]
        if number:
            inputs = shape[1] // shapes[number - 1][0] * widths[number - 1]
        wanted.append((widths[number], inputs, *shape[2:]))
    return wanted


def _set_widths(layer: Any, shape: tuple[int, ...]) -> None:
    """Sets the widths that a linear layer or a convolution reports."""
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = shape
    else:
        layer.out_channels, layer.in_channels = shape[:2]
