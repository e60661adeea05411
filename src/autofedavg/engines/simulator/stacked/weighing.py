"""A step on the weights of mixtures, taken by some clients together: one captured graph.

Every client mixes w_1 .. w_K by weights of its own, differentiates the loss of a batch there, and
multiplies the gradient with each w_k: dL/dalpha_k = <grad L(w), w_k>.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autofedavg.core.bank import Layers
from autofedavg.engines.simulator.stacked import kernels
from autofedavg.engines.simulator.stacked.program import Program

if TYPE_CHECKING:
    from autofedavg.engines.simulator.stacked.stack import Stack

TILE = 16  # clients, or models, that a kernel of mixtures works on at a time
WIDE, NARROW = 256, 64  # columns that it mixes, and multiplies, at a time
CHUNK = 2048  # columns for which it is launched


def captured(launch: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of what is launched; the first launch, outside it, compiles the kernels."""
    launch()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph


class Weighing:
    """The step of these clients, for mixtures of K models; batches are those that are loaded.

    Args:
        stack: whose networks and memory it works with.
        bank: w_1 .. w_K, a row each.
        clients: their numbers.
        layers: for weights of every layer's own.
    """

    def __init__(
        self, stack: Stack, bank: Tensor, clients: Sequence[int], layers: Layers | None
    ) -> None:
        # The stack keeps this; the other way round it would take a collection to free the two.
        self._stack: Stack = weakref.proxy(stack)
        self._bank, self._layered = bank, layers is not None
        self._rows = torch.tensor(clients, dtype=torch.int32, device=stack.device)
        groups = torch.split(self._rows, stack.width)
        self._programs = [Program(stack, group, None, learn=False) for group in groups[:-1]]
        # Rows of parameters in chunks, each within one layer: see `kernels.mixing`.
        chunks = zip(*stack.rows.chunks(layers, CHUNK), strict=True)
        first, size, layer = (torch.tensor(part, dtype=torch.int32) for part in chunks)
        self._linear = int((first < stack.rows.linear).sum())  # the first chunk of a linear layer
        self._chunks = [part.to(stack.device) for part in (first, size, layer)]
        belongs = (layer == torch.arange(int(layer.max()) + 1)[:, None]).float()
        self._belongs = belongs.to(stack.device)  # (P, chunks): 1 where a chunk is of a layer
        multiply = partial(self._multiply, slice(self._linear, None))
        self._programs.append(Program(stack, groups[-1], None, learn=False, halfway=multiply))
        n, K, P = len(clients), len(bank), len(belongs)
        self._alpha = torch.zeros(P, n, K, device=stack.device)
        self._said = torch.zeros(P, n, K, pin_memory=True)
        self._parts = torch.zeros(len(first), n * K, device=stack.device)
        self._found = torch.zeros(n, 1 + K * P, dtype=torch.float64, device=stack.device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, alpha: Tensor) -> Tensor:
        """Takes the step at alpha (n, K), or (n, K, P).

        Returns:
            Of every client the loss and dL/dalpha in one row; on the GPU, not awaited, and good
            until the next step.
        """
        self._said.copy_(alpha.reshape(*alpha.shape[:2], -1).permute(2, 0, 1))
        self._alpha.copy_(self._said, non_blocking=True)
        if self._graph is None:
            self._graph = captured(self._launch, self._stack.device)
            self._programs.clear()  # the graph has what they launched
        self._graph.replay()
        return self._found

    def _launch(self) -> None:
        P, n, K = self._alpha.shape
        convolutions = slice(0, self._linear)
        # Reading all models takes memory's time, convolutions that of arithmetic: linear layers,
        # with most of the parameters, are mixed and multiplied beside.
        self._stack.beside(partial(self._mix, slice(self._linear, None)))
        self._mix(convolutions)
        self._stack.rewind()
        for program in self._programs:
            program.launch()
        self._multiply(convolutions)
        self._found[:, 0].copy_(self._stack.losses[:n])
        slopes = self._belongs @ self._parts if self._layered else self._parts.sum(0)
        self._found[:, 1:].copy_(slopes.view(P, n, K).permute(1, 2, 0).reshape(n, -1))

    def _mix(self, chunks: slice) -> None:
        stack, (_, n, K) = self._stack, self._alpha.shape
        first, size, layer = (part[chunks] for part in self._chunks)
        kernels.mix[len(first), -(-n // TILE)](
            self._bank, self._alpha, stack.s, self._rows, first, size, layer, stack.rows.stride, n,
            K, TILE, TILE, WIDE,
        )  # fmt: skip

    def _multiply(self, chunks: slice) -> None:
        stack, (_, n, K) = self._stack, self._alpha.shape
        first, size, _ = (part[chunks] for part in self._chunks)
        kernels.slopes[len(first), -(-n // TILE), -(-K // TILE)](
            self._bank, stack.g, self._parts[chunks], self._rows, first, size,
            stack.rows.stride, n, K, TILE, TILE, NARROW, num_warps=1, num_stages=4,
        )  # fmt: skip
