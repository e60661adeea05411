"""K networks on one GPU that take their training steps together.

Every client has a row of the matrices p (parameters, float32), m (momentum), g (gradient) and s
(p in bfloat16, what forward and backward read). A step works for as many clients as there are
slots, and is one captured graph, from bytes to new parameters, without a word from the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from autofedavg.averaging import Layers, Layout
from autofedavg.stacked import kernels
from autofedavg.stacked.layers import Layer
from autofedavg.stacked.pictures import Shown, Steps
from autofedavg.stacked.program import Program
from autofedavg.stacked.rows import Rows
from autofedavg.stacked.schedule import NOBODY, schedule

TILE = 16  # clients, or models, that a kernel of mixtures works on at a time
WIDE, NARROW = 256, 128  # columns that it mixes, and multiplies, at a time
CHUNK = 4096  # columns for which it is launched
EMPTY = np.empty(0)


@dataclass(frozen=True)
class Pictures:
    """All sites' pictures on the GPU, one site's after another's, and how to see them."""

    images: Tensor
    labels: Tensor
    shown: Shown
    starts: Sequence[int]  # where each client's pictures begin


@dataclass(frozen=True)
class Cut:
    """Rows of parameters in chunks, each within one layer: see `kernels.mixing`."""

    count: int
    first: Tensor
    size: Tensor
    layer: Tensor
    belongs: Tensor  # (P, chunks): 1 where a chunk is of a layer

    @classmethod
    def of(cls, chunks: Sequence[tuple[int, int, int]], device: torch.device) -> Cut:
        first, size, layer = (
            torch.tensor(part, dtype=torch.int32) for part in zip(*chunks, strict=True)
        )
        belongs = (layer == torch.arange(int(layer.max()) + 1)[:, None]).float()
        return cls(len(chunks), *(part.to(device) for part in (first, size, layer, belongs)))


class Recorded(NamedTuple):
    """A step as a graph. It works in the program's memory, which must not go to anybody else."""

    graph: torch.cuda.CUDAGraph
    program: Program


class Stack:
    """The networks of some clients, which are told by their numbers.

    Args:
        layers: of the network.
        layout: of its vector.
        pictures: of all sites.
        batch: pictures in a batch.
        slots: clients that take a step at a time.
    """

    def __init__(
        self, layers: Sequence[Layer], layout: Layout, pictures: Pictures, batch: int, slots: int
    ) -> None:
        self.layers, self.pictures = list(layers), pictures
        self.batch, self.slots = batch, slots
        self.device = pictures.images.device
        self.rows = Rows(layers, layout)
        clients = len(pictures.starts)
        self.p, self.m, self.g = (self._zeros(clients, self.rows.stride) for _ in range(3))
        self.start = self._zeros(clients, self.rows.stride)
        self.s = self.p.bfloat16()
        self.now = self._zeros(slots, dtype=torch.int32)
        self.at = self._zeros(1, dtype=torch.int32)
        self.steps = self._zeros(clients, dtype=torch.int32)
        self.starts = self._zeros(clients, dtype=torch.int32)
        self.seeds = self._zeros(clients, dtype=torch.int64)
        self.how = self._zeros(4)  # step size, momentum, weight decay, pull towards the start
        self.mean = torch.tensor(pictures.shown.mean, device=self.device)
        self.scale = 1 / torch.tensor(pictures.shown.std, device=self.device)
        self._held = ("", self.p)
        self._ready: tuple[dict[int, Steps], int] = {}, 0
        self._cuts: dict[object, Cut] = {}
        self._numbers: dict[tuple[int, ...], Tensor] = {}
        self._graphs: dict[tuple[bool, bool], Recorded] = {}
        self._make_room(1)

    def put(self, client: int, values: Tensor) -> None:
        """Gives a client a model."""
        self.rows.put(values, self.p[client])

    def model(self, client: int) -> Tensor:
        """A client's model as it is now."""
        return self.rows.take(self.p[client])

    def train(
        self, work: Mapping[int, Steps], seeds: Mapping[int, int], how: Sequence[float]
    ) -> dict[int, Tensor]:
        """Takes all steps of these clients, from a fresh momentum; the loss of every step.

        Args:
            work: each client's batches.
            seeds: of each client's dropout.
            how: step size, momentum, weight decay, pull towards the model it starts from.
        """
        self.how.copy_(torch.tensor(how))
        self.m.zero_()
        pull = bool(how[3])
        if pull:
            self.start.copy_(self.p)
        self.s.copy_(self.p)
        self._ready = {}, 0
        losses = self._carry_out(self._load(work, seeds), (True, pull))
        lengths = [len(steps.picks) for steps in work.values()]
        return dict(zip(work, torch.split(losses[: sum(lengths)], lengths), strict=True))

    def hold(self, digest: str, values: Tensor) -> None:
        """Keeps w_1 .. w_K, (K, D), to be mixed; the same ones are kept once."""
        if self._held[0] != digest:
            bank = self._zeros(len(values), self.rows.stride)
            for model, row in zip(values, bank, strict=True):
                self.rows.put(model, row)
            self._held = (digest, bank)

    def mix(self, clients: Sequence[int], alpha: Tensor, layers: Layers | None) -> None:
        """Gives each client its mixture of what is held: alpha (n, K), or (n, K, P)."""
        (n, K), cut = alpha.shape[:2], self._cut(layers)
        weights = alpha.to(torch.float32).reshape(n, K, -1).permute(2, 0, 1).contiguous()
        kernels.mix[cut.count, -(-n // TILE)](
            self._held[1], weights.to(self.device, non_blocking=True), self.s,
            self._rows(clients), cut.first, cut.size, cut.layer, self.rows.stride, n, K, TILE,
            TILE, WIDE,
        )  # fmt: skip

    def slopes(self, clients: Sequence[int], layers: Layers | None) -> Tensor:
        """dL/dalpha at the clients' mixtures: (n, K), or (n, K, P); on the GPU, and not awaited."""
        n, K, cut = len(clients), len(self._held[1]), self._cut(layers)
        parts = torch.empty(cut.count, n * K, device=self.device)
        kernels.slopes[cut.count, -(-n // TILE), -(-K // TILE)](
            self._held[1], self.g, parts, self._rows(clients), cut.first, cut.size,
            self.rows.stride, n, K, TILE, TILE, NARROW,
        )  # fmt: skip
        if layers is None:
            return parts.sum(0).view(n, K)
        return (cut.belongs @ parts).view(-1, n, K).permute(1, 2, 0)

    def _cut(self, layers: Layers | None) -> Cut:
        key = layers and layers.segments
        if key not in self._cuts:
            self._cuts[key] = Cut.of(self.rows.chunks(layers, CHUNK), self.device)
        return self._cuts[key]

    def _rows(self, clients: Sequence[int]) -> Tensor:
        """The clients' numbers on the GPU."""
        key = tuple(clients)
        if key not in self._numbers:
            self._numbers = {key: torch.tensor(key, dtype=torch.int32, device=self.device)}
        return self._numbers[key]

    def differentiate(self, work: Mapping[int, Steps]) -> Tensor:
        """The gradient of one batch each at the clients' mixtures, without dropout; the losses.

        Neither is awaited.
        """
        if not _same(self._ready[0], work):
            self.prepare(work)
        return self._carry_out(self._ready[1], (False, False))[: len(work)]

    def prepare(self, work: Mapping[int, Steps]) -> None:
        """Sends the batches of the next `differentiate` ahead, to arrive when this one is done."""
        self._ready = dict(work), self._load(work, dict.fromkeys(work, 0))

    def _carry_out(self, length: int, kind: tuple[bool, bool]) -> Tensor:
        """So many steps of what is loaded; the losses, one client's after another's."""
        graph = self._recorded(*kind).graph
        self.steps.zero_()
        self.at.zero_()
        for _ in range(length):
            graph.replay()
        return self.losses.clone()

    def _load(self, work: Mapping[int, Steps], seeds: Mapping[int, int]) -> int:
        """Puts batches where the kernels find them; how many steps it takes to do them all."""
        lengths = [len(steps.picks) for steps in work.values()]
        table = schedule(tuple(zip(work, lengths, strict=True)), self.slots)
        first = np.cumsum([0, *lengths])[:-1]
        begin = self.pictures.starts
        picks = np.concatenate(
            [np.where(steps.picks < 0, -1, steps.picks + begin[k]) for k, steps in work.items()]
        )
        moves = np.concatenate([steps.moves for steps in work.values()])
        if max(len(picks), len(table)) > len(self.losses):
            self._make_room(max(len(picks), len(table)))
        starts, salts = np.zeros(len(begin), np.int32), np.zeros(len(begin), np.int64)
        for k, row in zip(work, first, strict=True):
            starts[k], salts[k] = row, seeds[k] % 2**31
        for name, content in (
            ("picks", picks), ("moves", moves), ("table", table), ("starts", starts),
            ("seeds", salts),
        ):  # fmt: skip
            if not np.array_equal(self._loaded.get(name, EMPTY), content):
                place = getattr(self, name)[: len(content)]
                place.copy_(torch.from_numpy(content), non_blocking=True)
                self._loaded[name] = content
        return len(table)

    def _make_room(self, rows: int) -> None:
        """Memory for the batches of a round; graphs hold addresses, so they are made anew."""
        self._graphs.clear()
        self._loaded: dict[str, np.ndarray] = {}  # what of it is on the GPU
        self.picks = self._zeros(rows, self.batch, dtype=torch.int32)
        self.moves = self._zeros(rows, self.batch, dtype=torch.uint8)
        self.table = self._zeros(rows, self.slots, dtype=torch.int32)
        self.losses = self._zeros(rows)

    def _recorded(self, learn: bool, pull: bool) -> Recorded:
        if (learn, pull) not in self._graphs:
            program = Program(self, learn, pull)
            loaded = self.table.clone()
            self.table.fill_(NOBODY)  # the first time is for compiling alone
            program.launch()
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                program.launch()
            self.table.copy_(loaded)
            self.at.zero_()
            self._graphs[learn, pull] = Recorded(graph, program)
        return self._graphs[learn, pull]

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=self.device)


def _same(one: Mapping[int, Steps], other: Mapping[int, Steps]) -> bool:
    """Whether these are the very same batches."""
    return list(one) == list(other) and all(one[k] is steps for k, steps in other.items())
