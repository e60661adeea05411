"""K networks on one GPU that take their training steps together.

Every client has a row of the matrices p (parameters, float32), m (momentum), g (gradient) and s
(p in bfloat16, what forward and backward read). A step works for as many clients as there are
slots, and is one captured graph, from bytes to new parameters, without a word from the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autofedavg.averaging import Layers, Layout
from autofedavg.stacked.layers import Layer
from autofedavg.stacked.pictures import Shown, Steps
from autofedavg.stacked.program import Program
from autofedavg.stacked.rows import ALIGNED, Rows
from autofedavg.stacked.schedule import NOBODY, schedule

EMPTY = np.empty(0)


@dataclass(frozen=True)
class Pictures:
    """All sites' pictures on the GPU, one site's after another's, and how to see them."""

    images: Tensor
    labels: Tensor
    shown: Shown
    starts: Sequence[int]  # where each client's pictures begin


@dataclass(frozen=True)
class Blocks:
    """Which layer every block of a row is of: (blocks,), and as (P, blocks) ones and zeros."""

    layer: Tensor
    belongs: Tensor

    @classmethod
    def of(cls, layers: Sequence[int], device: torch.device) -> Blocks:
        layer = torch.tensor(layers, device=device)
        each = torch.arange(max(layers) + 1, device=device)
        return cls(layer, (layer == each[:, None]).float())


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
        self._kinds: dict[object, Blocks] = {}
        self._graphs: dict[tuple[bool, bool], torch.cuda.CUDAGraph] = {}
        self._make_room(1)

    def put(self, client: int, values: Tensor) -> None:
        """Gives a client a model."""
        self.rows.put(values, self.p[client])

    def model(self, client: int) -> Tensor:
        """A client's model as it is now."""
        return self.rows.take(self.p[client])

    def gradient(self, client: int) -> Tensor:
        """The gradient at a client's model, of the batch it was last computed for."""
        return self.rows.take(self.g[client])

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
        losses = self._carry_out(work, seeds, (True, pull))
        lengths = [len(steps.picks) for steps in work.values()]
        return dict(zip(work, torch.split(losses, lengths), strict=True))

    def hold(self, digest: str, values: Tensor) -> None:
        """Keeps w_1 .. w_K, (K, D), to be mixed; the same ones are kept once."""
        if self._held[0] != digest:
            bank = self._zeros(len(values), self.rows.stride)
            for model, row in zip(values, bank, strict=True):
                self.rows.put(model, row)
            self._held = (digest, bank)

    def mix(self, clients: Sequence[int], alpha: Tensor, layers: Layers | None) -> None:
        """Gives each client its mixture of what is held: alpha (n, K), or (n, K, P)."""
        n, K = alpha.shape[:2]
        weights = alpha.to(torch.float32).to(self.device).reshape(n, K, -1).permute(2, 0, 1)
        mixed = torch.bmm(weights[self._blocks(layers).layer], self._in_blocks(self._held[1]))
        self._in_blocks(self.s)[:, self._rows(clients)] = mixed.to(self.s.dtype)

    def slopes(self, clients: Sequence[int], layers: Layers | None) -> Tensor:
        """dL/dalpha at the clients' mixtures: (n, K), or (n, K, P); on the GPU, and not awaited."""
        g = self._in_blocks(self.g)[:, self._rows(clients)]
        # Product by product: one matrix product that sums millions keeps a few of its cores busy.
        parts = torch.bmm(g, self._in_blocks(self._held[1]).transpose(1, 2))
        if layers is None:
            return parts.sum(0)
        of_layers = self._blocks(layers).belongs @ parts.flatten(1)
        return of_layers.view(-1, *parts.shape[1:]).permute(1, 2, 0)

    def _in_blocks(self, matrix: Tensor) -> Tensor:
        """A view of rows of parameters, block by block: (blocks, rows, ALIGNED)."""
        return matrix.view(len(matrix), -1, ALIGNED).transpose(0, 1)

    def _blocks(self, layers: Layers | None) -> Blocks:
        key = layers and layers.segments
        if key not in self._kinds:
            self._kinds[key] = Blocks.of(self.rows.layer_of_blocks(layers), self.device)
        return self._kinds[key]

    def _rows(self, clients: Sequence[int]) -> slice | Tensor:
        """Where these clients' rows are; all rows need not be gathered."""
        everybody = list(clients) == list(range(len(self.p)))
        return slice(None) if everybody else torch.tensor(clients, device=self.device)

    def differentiate(self, work: Mapping[int, Steps]) -> Tensor:
        """The gradient of one batch each at the clients' mixtures, without dropout; the losses."""
        return self._carry_out(work, dict.fromkeys(work, 0), (False, False))

    def _carry_out(
        self, work: Mapping[int, Steps], seeds: Mapping[int, int], kind: tuple[bool, bool]
    ) -> Tensor:
        """The losses of all steps, one client's after another's."""
        lengths = [len(steps.picks) for steps in work.values()]
        table = schedule(tuple(zip(work, lengths, strict=True)), self.slots)
        first = np.cumsum([0, *lengths])
        self._load(work, seeds, first[:-1], table)
        graph = self._graph(*kind)
        for _ in range(len(table)):
            graph.replay()
        return self.losses[: first[-1]].clone()

    def _load(
        self,
        work: Mapping[int, Steps],
        seeds: Mapping[int, int],
        first: np.ndarray,
        table: np.ndarray,
    ) -> None:
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
                getattr(self, name)[: len(content)].copy_(torch.from_numpy(content))
                self._loaded[name] = content
        self.steps.zero_()
        self.at.zero_()

    def _make_room(self, rows: int) -> None:
        """Memory for the batches of a round; graphs hold addresses, so they are made anew."""
        self._graphs.clear()
        self._loaded: dict[str, np.ndarray] = {}  # what of it is on the GPU
        self.picks = self._zeros(rows, self.batch, dtype=torch.int32)
        self.moves = self._zeros(rows, self.batch, dtype=torch.uint8)
        self.table = self._zeros(rows, self.slots, dtype=torch.int32)
        self.losses = self._zeros(rows)

    def _graph(self, learn: bool, pull: bool) -> torch.cuda.CUDAGraph:
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
            self._graphs[learn, pull] = graph
        return self._graphs[learn, pull]

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=self.device)
