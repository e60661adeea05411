"""Which networks can be worked on several at once, and what their layers are.

Widths are those that the kernels' tiles divide. A network of other widths is worked on as a wider
one whose further units are zero: they give nothing, so no gradient reaches them and they stay zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
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


def layers_of(network: nn.Module, channels: int, size: int) -> list[Layer] | None:
    """The layers of a network for square pictures, or None where it has others than these."""
    try:
        return _Reader(network, channels, size).layers()
    except _Other:
        return None


def fits(layers: Sequence[Layer], batch: int) -> bool:
    """Whether the kernels' tiles divide the batches of such a network."""
    sizes = [layer.size for layer in layers if isinstance(layer, Convolution)]
    return batch in BATCHES and all(batch * size * size % POSITIONS == 0 for size in sizes)


class _Other(Exception):
    """Something that is not of the kinds above."""


class _Reader:
    def __init__(self, network: nn.Module, channels: int, size: int) -> None:
        if type(network) is not nn.Sequential:
            raise _Other
        self._left = deque(network.named_children())
        self._channels, self._size = channels, size
        self._room = channels  # channels with those that are zero

    def layers(self) -> list[Layer]:
        found: list[Layer] = []
        while self._next(nn.Conv2d):
            found.append(self._convolution(*self._left.popleft()))
        if not found or not self._take(nn.Flatten):
            raise _Other
        last = found[-1]
        if not isinstance(last, Convolution) or not last.pooled:
            raise _Other
        if not last.drop:
            found[-1] = self._dropped(last, nn.Dropout, "elements")
        picture: tuple[int, int] | None = (self._room, self._size)
        while self._left:
            found.append(self._linear(picture))
            picture = None
        if not isinstance(found[-1], Linear) or found[-1].relu:
            raise _Other
        return found

    def _convolution(self, name: str, module: Any) -> Convolution:
        plain = (module.kernel_size, module.stride, module.padding, module.dilation, module.groups)
        inputs, outputs = self._room, rounded(module.out_channels)
        # Nine taps of three channels fill a tile; only pictures have so few.
        fitting = inputs <= 3 or inputs == rounded(inputs)
        if (
            plain != ((3, 3), (1, 1), (1, 1), (1, 1), 1)
            or module.padding_mode != "zeros"
            or module.bias is None
            or module.in_channels != self._channels
            or not fitting
            or not (outputs <= MOST and _is_power(self._size))
            or not self._take(nn.ReLU)
        ):
            raise _Other
        layer = Convolution(name, inputs, outputs, self._size)
        self._channels, self._room = module.out_channels, outputs
        pool = self._take(nn.MaxPool2d)
        if pool is None:
            return layer
        if (pool.kernel_size, pool.stride, pool.padding, pool.dilation) != (2, 2, 0, 1):
            raise _Other
        self._size //= 2
        layer = Convolution(name, inputs, outputs, layer.size, pooled=True)
        return self._dropped(layer, nn.Dropout2d, "channels")

    def _linear(self, picture: tuple[int, int] | None) -> Linear:
        name, module = self._left.popleft()
        if type(module) is not nn.Linear or module.bias is None:
            raise _Other
        area = self._size**2 if picture else 1
        if module.in_features != self._channels * area:
            raise _Other
        relu = self._take(nn.ReLU) is not None
        if not relu and self._left:
            raise _Other
        dropout = self._take(nn.Dropout) if relu else None
        keep = 1 - dropout.p if dropout else 1.0
        inputs, outputs = self._room * area, module.out_features
        self._channels, self._room = outputs, rounded(outputs) if relu else outputs
        return Linear(name, inputs, self._room, relu, keep, picture)

    def _dropped(
        self, layer: Convolution, kind: type[nn.Module], how: Literal["channels", "elements"]
    ) -> Convolution:
        dropout = self._take(kind)
        if dropout is None:
            return layer
        return Convolution(
            layer.name, layer.inputs, layer.outputs, layer.size, True, how, 1 - float(dropout.p)
        )

    def _next(self, kind: type[nn.Module]) -> bool:
        return bool(self._left) and type(self._left[0][1]) is kind

    def _take(self, kind: type[nn.Module]) -> Any:
        return self._left.popleft()[1] if self._next(kind) else None


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
