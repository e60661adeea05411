"""A network's parameters in the order in which the kernels read them.

Convolutions have their input channels last; the first linear layer reads a picture with its
channels last, too. Every tensor begins at a multiple of 64, so that it can be read 16 bytes a time.
Where layers are wider than the network's, its numbers come first along every axis, and then zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autofedavg.core.bank import Layers, Layout
from autofedavg.engines.simulator.stacked.layers import Convolution, Layer, Linear

ALIGNED = 64
LAST = (0, 2, 3, 1)  # channels last


@dataclass(frozen=True)
class Piece:
    """One tensor: where it begins in a row, and in the network's own vector."""

    at: int
    start: int
    stop: int
    shape: tuple[int, ...]
    order: tuple[int, ...]  # of its axes in a row
    room: tuple[int, ...]  # its shape there, with what is zero

    @property
    def size(self) -> int:
        """Numbers that it takes in a row."""
        return math.prod(self.room)

    def of(self, values: Tensor) -> Tensor:
        """The tensor in a network's vector, its axes as in a row."""
        return values[self.start : self.stop].view(self.shape).permute(self.order)

    def within(self, row: Tensor) -> Tensor:
        """The same tensor's place in a row."""
        place = row[self.at : self.at + self.size].view(self.room)
        return place[tuple(slice(self.shape[axis]) for axis in self.order)]


class Rows:
    """Where the tensors of a network lie in a row of `stride` numbers.

    Args:
        layers: of the network.
        layout: of its vector.
    """

    def __init__(self, layers: Sequence[Layer], layout: Layout) -> None:
        self.size = layout.size
        self.pieces: dict[str, Piece] = {}
        entries = {entry.name: entry for entry in layout.entries}
        at = 0
        for layer in layers:
            for part in ("weight", "bias"):
                entry = entries[f"{layer.name}.{part}"]
                how = _read(layer, part, tuple(entry.shape))
                self.pieces[entry.name] = piece = Piece(at, entry.start, entry.stop, *how)
                at += _aligned(piece.size)
        self.stride = at
        linear = next(layer for layer in layers if isinstance(layer, Linear))
        self.linear = self.pieces[f"{linear.name}.weight"].at  # where linear layers begin

    def put(self, values: Tensor, row: Tensor) -> None:
        """Writes a network's vector into a row whose other numbers are zero."""
        for piece in self.pieces.values():
            piece.within(row).copy_(piece.of(values))

    def chunks(self, layers: Layers | None, most: int) -> list[tuple[int, int, int]]:
        """A row in pieces of at most so many numbers, each within a layer: (start, size, layer).

        The gap behind a tensor goes with it.

        Args:
            layers: None where all numbers are of one layer, 0; even so no piece has numbers of
                convolutions and of linear layers.
            most: numbers in a piece, a multiple of `ALIGNED`, as starts and sizes are then.
        """
        segments = [(0, self.linear, 0), (self.linear, self.stride - self.linear, 0)]
        if layers is not None:
            segments = [
                (piece.at, _aligned(piece.size), p)
                for piece in self.pieces.values()
                for start, stop, p in layers.segments
                if start <= piece.start < stop
            ]
        return [
            (start + begin, min(most, size - begin), p)
            for start, size, p in segments
            for begin in range(0, size, most)
        ]

    def take(self, row: Tensor) -> Tensor:
        """The network's vector that is in a row."""
        values = torch.empty(self.size, dtype=row.dtype, device=row.device)
        for piece in self.pieces.values():
            piece.of(values).copy_(piece.within(row))
        return values


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _read(
    layer: Layer, part: str, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shape by which a tensor's axes can be told apart, their order in a row, and its room."""
    if part == "bias":
        return shape, (0,), (layer.outputs,)
    if isinstance(layer, Convolution):
        return shape, LAST, (layer.outputs, 3, 3, layer.inputs)
    if layer.picture:
        channels, size = layer.picture
        apart = (shape[0], shape[1] // size**2, size, size)
        return apart, LAST, (layer.outputs, size, size, channels)
    return shape, (0, 1), (layer.outputs, layer.inputs)
