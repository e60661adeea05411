"""Which networks can be worked on several at once, and what their layers are.

Widths are those that the kernels' tiles divide. A network of other widths is worked on as a wider
one whose further units are zero: they give nothing, so no gradient reaches them and they stay zero.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

FEW = 16  # channels: below it, a convolution's nine taps are read side by side
MOST = 512  # channels of a convolution: a bias's gradient has them in one tile
TILE = 64  # what larger widths are multiples of
POSITIONS = 4096  # in a batch of the smallest pictures: what all tiles and parts divide
BATCHES = (16, 32, 64, 128)


def rounded(width: int) -> int:
    """The next width that tiles divide.

    Example:
        >>> [rounded(width) for width in (3, 16, 24, 47, 79, 271)]
        [16, 16, 32, 64, 128, 320]
    """
    return next((small for small in (16, 32) if width <= small), -(-width // TILE) * TILE)


def tile(width: int, most: int) -> int:
    """The largest power of two up to `most` that divides a width.

    Example:
        >>> tile(320, 128), tile(256, 128), tile(16, 128)
        (64, 128, 16)
    """
    return min(most, width & -width)


@dataclass(frozen=True)
class Convolution:
    """3 x 3, padding 1, then ReLU, on squares of `size`; then perhaps 2 x 2 maxima and dropout."""

    name: str
    inputs: int
    outputs: int
    size: int
    pooled: bool = False
    drop: Literal["", "channels", "elements"] = ""
    keep: float = 1.0


@dataclass(frozen=True)
class Linear:
    """With ReLU and dropout, but for the last one."""

    name: str
    inputs: int
    outputs: int
    relu: bool = False
    keep: float = 1.0
    picture: tuple[int, int] | None = None  # (channels, size) of the picture its input was


Layer = Convolution | Linear


_LETTERS = {
    nn.Conv2d: "C", nn.ReLU: "R", nn.MaxPool2d: "M", nn.Dropout2d: "d", nn.Flatten: "F",
    nn.Dropout: "D", nn.Linear: "L",
}  # fmt: skip
# Convolutions, the last one with maxima, then linear layers: by the letters of their modules.
_CHAIN = re.compile(r"(CR(Md?)?)*CRM(dF|FD?)(LRD?)*L")


_SETTINGS: dict[type[nn.Module], dict[str, Any]] = {
    nn.Conv2d: {
        "kernel_size": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1),
        "groups": 1, "padding_mode": "zeros",
    },
    nn.MaxPool2d: {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1},
}  # fmt: skip


def layers_of(network: nn.Module, channels: int, size: int) -> list[Layer] | None:
    """The layers of a network for square pictures, or None where it has others than these."""
    modules: list[tuple[str, Any]] = list(network.named_children())
    letters = "".join(_LETTERS.get(type(module), "?") for _, module in modules)
    chain = type(network) is nn.Sequential and _CHAIN.fullmatch(letters)
    if not chain or not all(_is_plain(module) for _, module in modules):
        return None
    found: list[Any] = []
    room = channels  # channels with those that are zero
    picture: tuple[int, int] | None = None
    for number, (name, module) in enumerate(modules):
        match letters[number]:
            case "C":
                outputs = rounded(module.out_channels)
                # Nine taps of three channels fill a tile; only pictures have so few.
                fitting = room <= 3 or room == rounded(room)
                known = module.in_channels == channels and fitting and outputs <= MOST
                if not known or size.bit_count() != 1:
                    return None
                found.append(Convolution(name, room, outputs, size))
                channels, room = module.out_channels, outputs
            case "M":
                found[-1], size = replace(found[-1], pooled=True), size // 2
            case "F":
                picture = (room, size)
            case "d" | "D" as letter:
                drop = {"drop": "channels" if letter == "d" else "elements"}
                how = drop if isinstance(found[-1], Convolution) else {}
                found[-1] = replace(found[-1], keep=1 - float(module.p), **how)
            case "L":
                area = size**2 if picture else 1
                if module.in_features != channels * area:
                    return None
                inputs, channels, relu = room * area, module.out_features, number + 1 < len(modules)
                room = rounded(channels) if relu else channels
                found.append(Linear(name, inputs, room, relu, picture=picture))
                picture = None
    return found


def _is_plain(module: nn.Module) -> bool:
    """Whether a module has the settings above, and a bias where it can have one."""
    wanted = _SETTINGS.get(type(module), {})
    biased = getattr(module, "bias", True) is not None
    return biased and all(getattr(module, name) == value for name, value in wanted.items())


def fits(layers: Sequence[Layer], batch: int) -> bool:
    """Whether the kernels' tiles divide the batches of such a network."""
    sizes = [layer.size for layer in layers if isinstance(layer, Convolution)]
    return batch in BATCHES and all(batch * size * size % POSITIONS == 0 for size in sizes)
