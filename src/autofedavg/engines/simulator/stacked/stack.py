"""K networks on one GPU that take their training steps together.

Every client has a row of the matrices p (parameters, float32), m (momentum), g (gradient) and s
(p in bfloat16, what forward and backward read). A step works for as many clients as there are
slots, and is one captured graph, from bytes to new parameters, without a word from the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autofedavg.core.bank import Layers, Layout
from autofedavg.engines.simulator.stacked.layers import Layer
from autofedavg.engines.simulator.stacked.program import Program
from autofedavg.engines.simulator.stacked.rows import Rows
from autofedavg.engines.simulator.stacked.schedule import NOBODY, schedule
from autofedavg.engines.simulator.stacked.weighing import Weighing, captured
from autofedavg.tasks.cifar.pictures import BatchPlan, PictureFormat

EMPTY = np.empty(0)
NO_TABLE = np.empty((0, 0), np.int32)


@dataclass(frozen=True)
class Pictures:
    """All sites' pictures on the GPU, one site's after another's, and how to see them."""

    images: Tensor
    labels: Tensor
    shown: PictureFormat
    starts: Sequence[int]  # where each client's pictures begin


class Stack:
    """The networks of some clients, which are addressed by number.

    Args:
        layers: of the network.
        layout: of its vector.
        pictures: of all sites.
        batch: pictures in a batch.
        slots: clients that take a training step at a time.
        width: clients that take a step on the weights at a time, and no fewer than `slots`.
        frozen: how many of the first layers are not trained.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        layout: Layout,
        pictures: Pictures,
        batch: int,
        slots: int,
        width: int,
        frozen: int = 0,
    ) -> None:
        self.layers, self.pictures = list(layers), pictures
        self.batch, self.slots, self.width, self.frozen = batch, slots, width, frozen
        self.device = pictures.images.device
        self.rows = Rows(layers, layout)
        clients = len(pictures.starts)
        self.p, self.m, self.g = (self._zeros(clients, self.rows.stride) for _ in range(3))
        self.start = self.p[:0]  # where FedProx pulls to; nobody else needs it
        self.s = self.p.bfloat16()
        self.now = self._zeros(slots, dtype=torch.int32)
        self.at = self._zeros(1, dtype=torch.int32)
        self.steps = self._zeros(clients, dtype=torch.int32)
        self.starts = self._zeros(clients, dtype=torch.int32)
        self.seeds = self._zeros(clients, dtype=torch.int64)
        self.how = self._zeros(4)  # step size, momentum, weight decay, pull towards the start
        self.mean = torch.tensor(pictures.shown.mean, device=self.device)
        self.scale = 1 / torch.tensor(pictures.shown.std, device=self.device)
        self._held, self._bank = "", self.p[:0]
        self._weighing: tuple[object, Weighing] | None = None
        self._ready: dict[int, BatchPlan] = {}
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.memory: list[Tensor] = []  # of programs, between layers
        self._beside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._make_room(1)

    def put(self, client: int, values: Tensor) -> None:
        """Gives a client a model."""
        self.rows.put(values, self.p[client])

    def model(self, client: int) -> Tensor:
        """A client's model as it is now."""
        return self.rows.take(self.p[client])

    def train(
        self, work: Mapping[int, BatchPlan], seeds: Mapping[int, int], how: Sequence[float]
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
            if not len(self.start):
                self.start = torch.empty_like(self.p)
            self.start.copy_(self.p)
        self.s.copy_(self.p)
        self._ready = {}
        table = schedule(tuple((k, len(steps.picks)) for k, steps in work.items()), self.slots)
        self._load(work, seeds, table)
        graph = self._recorded(pull)
        self.rewind()
        for _ in table:
            graph.replay()
        losses = self.losses.clone()
        lengths = [len(steps.picks) for steps in work.values()]
        return dict(zip(work, torch.split(losses[: sum(lengths)], lengths), strict=True))

    def hold(self, digest: str, values: Tensor) -> None:
        """Keeps w_1 .. w_K, (K, D), to be mixed; the same ones are kept once."""
        if self._held == digest:
            return
        self._held = ""
        if len(self._bank) != len(values):
            self._weighing, self._bank = None, self.p[:0]  # given back before the new one is made
            self._bank = self._zeros(len(values), self.rows.stride)
        for model, row in zip(values, self._bank, strict=True):
            self.rows.put(model, row)
        self._held = digest

    def weigh(self, work: Mapping[int, BatchPlan], alpha: Tensor, layers: Layers | None) -> Tensor:
        """Takes a step on the weights of what is held: see `Weighing`.

        Args:
            work: one batch of every client that takes part.
            alpha: at which weights, (n, K), or (n, K, P) layer-wise.
            layers: for layer-wise weights.
        """
        ready = [(k, id(steps)) for k, steps in self._ready.items()]
        if ready != [(k, id(steps)) for k, steps in work.items()]:  # not the very same batches
            self.prepare(work)
        key = (tuple(work), layers and layers.segments)
        if self._weighing is None or self._weighing[0] != key:
            self._weighing = key, Weighing(self, self._bank, key[0], layers)
        return self._weighing[1](alpha)

    def prepare(self, work: Mapping[int, BatchPlan]) -> None:
        """Sends the batches of the next `weigh` ahead, to arrive when this one is done."""
        self._load(work, dict.fromkeys(work, 0))
        self._ready = dict(work)

    def rewind(self) -> None:
        """Back to the first of the batches that are loaded."""
        self.steps.zero_()
        self.at.zero_()

    def beside(self, launch: Callable[[], None]) -> None:
        """Launches kernels that need not wait for those which come now, until the next `join`."""
        self._beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._beside):
            launch()

    def join(self) -> None:
        """What comes now waits for all that is done beside."""
        torch.cuda.current_stream(self.device).wait_stream(self._beside)

    def _load(
        self, work: Mapping[int, BatchPlan], seeds: Mapping[int, int], table: np.ndarray = NO_TABLE
    ) -> None:
        """Puts batches, and who does them when, where the kernels find them."""
        lengths = [len(steps.picks) for steps in work.values()]
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
            if len(content) and not np.array_equal(self._loaded.get(name, EMPTY), content):
                place = getattr(self, name)[: len(content)]
                place.copy_(torch.from_numpy(content), non_blocking=True)
                self._loaded[name] = content

    def _make_room(self, rows: int) -> None:
        """Memory for the batches of a round; graphs hold addresses, so they are recorded again."""
        self._graphs.clear()
        self._weighing = None
        self._loaded: dict[str, np.ndarray] = {}  # what of it is on the GPU
        self.picks = self._zeros(rows, self.batch, dtype=torch.int32)
        self.moves = self._zeros(rows, self.batch, dtype=torch.uint8)
        self.table = self._zeros(rows, self.slots, dtype=torch.int32)
        self.losses = self._zeros(rows)

    def _recorded(self, pull: bool) -> torch.cuda.CUDAGraph:
        """A training step; with FedProx's pull, or without."""
        if pull not in self._graphs:
            program = Program(self, self.now, self.table, learn=True, pull=pull)
            loaded, known = self.table.clone(), self._loaded.pop("table", EMPTY)
            self.rewind()
            self.table.fill_(NOBODY)  # the first time is for compiling alone
            self._graphs[pull] = captured(program.launch, self.device)
            self.table.copy_(loaded)
            self._loaded["table"] = known
        return self._graphs[pull]

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=self.device)
