"""The kernels of one step, in order, with the memory between a network's layers.

Tiles are the fastest of those measured on an H200 for VGG-9's layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autofedavg.engines.simulator.stacked import kernels
from autofedavg.engines.simulator.stacked.layers import FEW, Convolution, Layer, Linear, tile

if TYPE_CHECKING:
    from autofedavg.engines.simulator.stacked.stack import Stack

BLOCK = 1024
TILE = 128
SUMS = 64  # parts that a bias's gradient is summed in
DROPS = {"": 0, "channels": 1, "elements": 2}


class Program:
    """One step of the clients that are in the slots.

    On the way back, the gradients of the weights are worked out beside those of the layers' inputs:
    neither waits for the other, and what one kernel leaves of the GPU at its end the other has.

    Args:
        stack: whose memory it works on.
        now: the clients in the slots.
        table: who is in them at every step, one after another; None where they stay.
        learn: whether parameters take a step and dropout drops; else gradients are written.
        pull: whether the model that training started from pulls (FedProx).
        halfway: launched beside when the linear layers have their gradients.
    """

    def __init__(
        self,
        stack: Stack,
        now: Tensor,
        table: Tensor | None,
        learn: bool,
        pull: bool = False,
        halfway: Callable[[], None] | None = None,
    ) -> None:
        self._stack, self._now, self._slots = stack, now, len(now)
        self._learn, self._pull = learn, pull
        self._launches: list[Callable[[], None]] = []
        self._taken = 0  # pieces of memory
        self._inputs: list[Tensor] = []  # of every layer
        self._outputs: list[Tensor] = []  # before the maxima
        width = _power(self._slots)
        if table is not None:
            self._add(kernels.begin, (1,), now, stack.at, table, self._slots, width)
        slope = self._loss(self._forward(self._pictures()))
        self._backward(slope, halfway)
        self._join()
        if learn:
            self._descend()
        if table is not None:
            self._add(kernels.advance, (1,), now, stack.at, stack.steps, self._slots, width)

    def launch(self) -> None:
        for launch in self._launches:
            launch()

    def _add(
        self, kernel: Any, grid: tuple[int, ...], *args: Any, beside: bool = False, **how: Any
    ) -> None:
        def launch() -> None:
            kernel[grid](*args, **how)

        self._launches.append(partial(self._stack.beside, launch) if beside else launch)

    def _join(self) -> None:
        """What comes now waits for all that is done beside."""
        self._launches.append(self._stack.join)

    def _memory(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Memory of every slot's own, the next of the stack's.

        A stack's programs ask for the same pieces in the same order, and run one at a time: they
        share them. The stack keeps them, for a captured graph works where it was captured.
        """
        stack, number = self._stack, self._taken
        self._taken += 1
        if number == len(stack.memory):
            stack.memory.append(torch.zeros(stack.width, *shape, dtype=dtype, device=stack.device))
        return stack.memory[number][: self._slots]

    def _like(self, other: Tensor) -> Tensor:
        return self._memory(*other.shape[1:])

    def _of(self, matrix: Tensor, layer: Layer, part: str) -> Tensor:
        """A matrix of parameters from where a tensor begins in its first row on."""
        return matrix.view(-1)[self._at(layer, part) :]

    def _at(self, layer: Layer, part: str) -> int:
        return self._stack.rows.pieces[f"{layer.name}.{part}"].at

    # --- forward ---------------------------------------------------------------------------------

    def _pictures(self) -> Tensor:
        stack, shown = self._stack, self._stack.pictures.shown
        channels = len(shown.mean)
        x = self._memory(stack.batch, shown.size, shown.size, channels)
        self._add(
            kernels.pictures, (stack.batch, self._slots), stack.pictures.images, stack.picks,
            stack.moves, stack.starts, stack.steps, self._now, x, stack.mean, stack.scale,
            stack.batch, shown.size, channels, shown.pad, _power(x[0, 0].numel()),
        )  # fmt: skip
        return x

    def _forward(self, x: Tensor) -> Tensor:
        for salt, layer in enumerate(self._stack.layers):
            self._inputs.append(x)
            if isinstance(layer, Convolution):
                x = self._convolve(layer, x, salt)
            else:
                if not self._learn and self._at(layer, "weight") == self._stack.rows.linear:
                    self._join()  # linear layers are mixed beside
                x = self._linear(layer, x, salt)
        return x

    def _convolve(self, layer: Convolution, x: Tensor, salt: int) -> Tensor:
        stack, size = self._stack, layer.size
        y = self._memory(stack.batch, size, size, layer.outputs)
        M = stack.batch * size * size
        BN = tile(layer.outputs, 256 if size <= 8 else TILE)
        BK = 32 if layer.inputs < FEW else tile(layer.inputs, 64)
        self._add(
            kernels.convolve, (M // TILE * (layer.outputs // BN), self._slots), x,
            self._of(stack.s, layer, "weight"), self._of(stack.s, layer, "bias"), y, self._now, M,
            stack.rows.stride, size, size, layer.inputs, layer.outputs, True, TILE, BN, BK,
            num_warps=4 if layer.outputs <= 64 else 8, num_stages=3 if BK == 64 else 4,
        )  # fmt: skip
        self._outputs.append(y)
        if not layer.pooled:
            return y
        end = self._memory(stack.batch, size // 2, size // 2, layer.outputs)
        elements = end[0].numel()
        self._add(
            kernels.pool, (-(-elements // BLOCK), self._slots), y, end, self._now, stack.seeds,
            stack.steps, salt, elements, size, size, layer.outputs,
            DROPS[layer.drop] if self._learn else 0, layer.keep, BLOCK,
        )  # fmt: skip
        return end

    def _linear(self, layer: Linear, x: Tensor, salt: int) -> Tensor:
        stack = self._stack
        kind = torch.bfloat16 if layer.relu else torch.float32
        y = self._memory(stack.batch, layer.outputs, dtype=kind)
        BN = 16 if layer.outputs <= 16 else 64
        self._add(
            kernels.linear, (-(-layer.outputs // BN), self._slots), x,
            self._of(stack.s, layer, "weight"), self._of(stack.s, layer, "bias"), y, self._now,
            stack.seeds, stack.steps, salt, stack.rows.stride, stack.batch, layer.inputs,
            layer.outputs, layer.relu, layer.keep if self._learn else 1.0, BN,
            tile(layer.inputs, TILE), num_warps=4, num_stages=3,
        )  # fmt: skip
        self._outputs.append(y)
        return y

    def _loss(self, logits: Tensor) -> Tensor:
        stack, classes = self._stack, logits.shape[-1]
        slope = self._like(logits)
        self._add(
            kernels.cross_entropy, (self._slots,), logits, stack.pictures.labels, stack.picks,
            stack.starts, stack.steps, self._now, slope, stack.losses, stack.batch, classes,
            max(16, _power(classes)),
        )  # fmt: skip
        return slope

    # --- backward --------------------------------------------------------------------------------

    def _backward(self, slope: Tensor, halfway: Callable[[], None] | None) -> None:
        layers = self._stack.layers
        for index in reversed(range(self._stack.frozen, len(layers))):
            layer, before = layers[index], layers[index - 1] if index else None
            if isinstance(layer, Linear):
                slope = self._linear_back(layer, index, slope, before)
                if halfway is not None and not isinstance(before, Linear):
                    self._launches.append(partial(self._stack.beside, halfway))
            else:
                slope = self._convolve_back(layer, index, slope, before)

    def _linear_back(self, layer: Linear, index: int, dz: Tensor, before: Layer | None) -> Tensor:
        stack, x = self._stack, self._inputs[index]
        dx = self._like(x)
        after_linear = isinstance(before, Linear)
        keep = before.keep if isinstance(before, Linear) and self._learn else 1.0
        BM, BN = 16 if layer.outputs <= 16 else 64, tile(layer.inputs, TILE)
        if index > stack.frozen:
            # First of the two: the other one changes the weights.
            self._add(
                kernels.linear_back, (layer.inputs // BN, self._slots), dz,
                self._of(stack.s, layer, "weight"), x, dx, self._now, stack.rows.stride,
                stack.batch, layer.inputs, layer.outputs, after_linear, keep, BN, BM, num_warps=4,
                num_stages=3,
            )  # fmt: skip
        self._add(
            kernels.linear_weights, (-(-layer.outputs // BM) * (layer.inputs // BN), self._slots),
            dz, x, stack.p, stack.m, stack.g, stack.s, stack.start, stack.how, self._now,
            stack.rows.stride, self._at(layer, "weight"), self._at(layer, "bias"), stack.batch,
            layer.inputs, layer.outputs, self._learn, self._pull, BM, BN, num_warps=4, beside=True,
        )  # fmt: skip
        return dx

    def _convolve_back(
        self, layer: Convolution, index: int, slope: Tensor, before: Layer | None
    ) -> Tensor:
        stack, size, x = self._stack, layer.size, self._inputs[index]
        M = stack.batch * size * size
        dz = self._pool_back(layer, index, slope) if layer.pooled else slope
        dx = self._like(x)
        if isinstance(before, Convolution) and index > stack.frozen:
            BN = tile(layer.inputs, TILE)
            self._add(
                kernels.convolve_back, (M // TILE * (layer.inputs // BN), self._slots), dz,
                self._of(stack.s, layer, "weight"), x, dx, self._now, M, stack.rows.stride, size,
                size, layer.inputs, layer.outputs, not before.pooled, TILE, BN,
                tile(layer.outputs, 64), num_warps=8, num_stages=3,
            )  # fmt: skip
        self._convolve_weights(layer, x, dz, M)
        biases = self._memory(SUMS, layer.outputs, dtype=torch.float32)
        self._add(
            kernels.convolve_bias, (SUMS, self._slots), dz, biases, self._now, M, layer.outputs,
            _power(layer.outputs), SUMS, 16, num_warps=4, beside=True,
        )  # fmt: skip
        self._gather(biases, layer, "bias")
        return dx

    def _pool_back(self, layer: Convolution, index: int, slope: Tensor) -> Tensor:
        y, end = self._outputs[index], self._inputs[index + 1]
        dz, elements = self._like(y), end[0].numel()
        self._add(
            kernels.pool_back, (-(-elements // BLOCK), self._slots), y, end, slope, dz, self._now,
            elements, layer.size, layer.size, layer.outputs, layer.keep if self._learn else 1.0,
            BLOCK,
        )  # fmt: skip
        return dz

    def _convolve_weights(self, layer: Convolution, x: Tensor, dz: Tensor, M: int) -> None:
        few = layer.inputs < FEW
        if few:
            BM, BN, BK, split, warps, stages = tile(layer.outputs, 32), 32, 128, 32, 4, 3
        elif layer.inputs < 64:
            BM, BN, BK, split, warps, stages = tile(layer.outputs, 64), layer.inputs, 128, 8, 4, 4
        else:
            split = 4 if layer.size > 8 else 1
            BM, BN, BK, warps, stages = tile(layer.outputs, TILE), 64, 64, 8, 3
        parts = self._memory(split, layer.outputs, 9 * layer.inputs, dtype=torch.float32)
        tiles = layer.outputs // BM * (1 if few else 3 * (layer.inputs // BN))
        self._add(
            kernels.convolve_weights_few if few else kernels.convolve_weights,
            (tiles, self._slots, split), dz, x, parts, self._now, M, layer.size, layer.size,
            layer.inputs, layer.outputs, split, BM, BN, BK, num_warps=warps, num_stages=stages,
            beside=True,
        )  # fmt: skip
        self._gather(parts, layer, "weight")

    def _gather(self, parts: Tensor, layer: Layer, part: str) -> None:
        stack, count, elements = self._stack, parts.shape[1], parts[0, 0].numel()
        block = max(16, 4096 // count)
        self._add(
            kernels.gather, (-(-elements // block), self._slots), parts,
            self._of(stack.g, layer, part), self._now, elements, stack.rows.stride, count, block,
            beside=True,
        )  # fmt: skip

    def _descend(self) -> None:
        """For the convolutions: linear layers have taken their step when this comes."""
        stack = self._stack
        first = stack.layers[stack.frozen]
        if isinstance(first, Linear):
            return
        size = stack.rows.linear - self._at(first, "weight")
        p, m, g, s = (
            self._of(each, first, "weight") for each in (stack.p, stack.m, stack.g, stack.s)
        )
        start = self._of(stack.start, first, "weight") if self._pull else stack.start
        self._add(
            kernels.descend, (-(-size // BLOCK), self._slots), p, m, g, s, start, stack.how,
            self._now, size, stack.rows.stride, self._pull, BLOCK,
        )  # fmt: skip


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
