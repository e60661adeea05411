"""The model bank: K flat models as one (K, D) matrix, and what is done with it.

A network becomes one vector: first every trainable parameter, then frozen parameters and floating
buffers. Integer buffers (BatchNorm's counters) travel beside it. Two products with the matrix are
all the method needs: w = sum_k alpha_k w_k, and dL/dalpha_k = <grad L(w), w_k>.

The buffer rule (decision 6): floating buffers are averaged with the alpha of the layer that owns
them; integer counters take the maximum over the clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from autofedavg.errors import AutoFedAvgError, ConfigError

LayerKind = Literal["module", "tensor"]


@dataclass(frozen=True)
class Model:
    """One network's state: `values` (D,) floating, `counters` (C,) int64."""

    values: Tensor
    counters: Tensor

    def clone(self) -> Model:
        return Model(self.values.clone(), self.counters.clone())


@dataclass(frozen=True)
class Layers:
    """How the vector falls into P layers: (start, stop, layer) segments that cover it."""

    names: tuple[str, ...]
    segments: tuple[tuple[int, int, int], ...]

    @property
    def P(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class _Entry:
    name: str
    module: str
    shape: torch.Size
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a network lies in the vector.

    Example:
        >>> layout = Layout.of(nn.Linear(3, 2))
        >>> layout.size, [name for name in layout.names]
        (8, ['weight', 'bias'])
    """

    entries: tuple[_Entry, ...]
    aliases: tuple[tuple[str, str], ...]
    counters: tuple[tuple[str, torch.Size], ...]
    trainable: int
    size: int
    dtype: torch.dtype

    @classmethod
    def of(cls, network: nn.Module) -> Layout:
        """Reads the layout of a network.

        Raises:
            ConfigError: no trainable parameter, or floating tensors of different types.
        """
        trainable, rest, counters = _tensors(network)
        if not trainable:
            raise ConfigError(
                "the network has no trainable parameter",
                where=type(network).__name__,
                remedy="set requires_grad on what is to be trained",
            )
        kinds = {tensor.dtype for _, tensor in [*trainable, *rest]}
        if len(kinds) > 1:
            raise ConfigError(
                f"the network mixes {', '.join(sorted(map(str, kinds)))}",
                where=type(network).__name__,
                remedy="cast it to one floating type; use training.precision for bfloat16",
            )
        entries, start = [], 0
        for name, tensor in [*trainable, *rest]:
            stop = start + tensor.numel()
            entries.append(_Entry(name, name.rpartition(".")[0], tensor.shape, start, stop))
            start = stop
        return cls(
            tuple(entries),
            _aliases(network),
            tuple((name, tensor.shape) for name, tensor in counters),
            sum(tensor.numel() for _, tensor in trainable),
            start,
            kinds.pop(),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @property
    def nbytes(self) -> int:
        """Bytes of one model as it travels."""
        counted = sum(shape.numel() for _, shape in self.counters)
        return self.size * torch.empty((), dtype=self.dtype).element_size() + 8 * counted

    def layers(self, kind: LayerKind) -> Layers:
        """The P layers: by owning module ("module"), or one per tensor ("tensor").

        Note:
            The paper does not say what a layer is: decision 5.
        """
        index: dict[str, int] = {}
        segments: list[tuple[int, int, int]] = []
        for entry in self.entries:
            p = index.setdefault(entry.module if kind == "module" else entry.name, len(index))
            if segments and segments[-1][2] == p:
                segments[-1] = (segments[-1][0], entry.stop, p)
            else:
                segments.append((entry.start, entry.stop, p))
        return Layers(tuple(index), tuple(segments))

    def read(self, network: nn.Module) -> Model:
        """The network's state as a new model."""
        trainable, rest, counters = _tensors(network)
        with torch.no_grad():
            values = torch.cat([tensor.reshape(-1) for _, tensor in [*trainable, *rest]])
            whole = [tensor.reshape(-1).to(torch.int64) for _, tensor in counters]
        return Model(values, torch.cat(whole) if whole else _none(values.device))

    def state_dict(self, model: Model) -> dict[str, Tensor]:
        """The model as named tensors, loadable into the network with `load_state_dict`."""
        named = {e.name: model.values[e.start : e.stop].reshape(e.shape) for e in self.entries}
        named |= self._named_counters(model.counters)
        return named | {alias: named[name] for alias, name in self.aliases if name in named}

    def model(self, state: Mapping[str, Tensor]) -> Model:
        """The inverse of `state_dict`."""
        values = torch.cat([state[entry.name].reshape(-1) for entry in self.entries])
        whole = [state[name].reshape(-1).to(torch.int64) for name, _ in self.counters]
        return Model(values, torch.cat(whole) if whole else _none(values.device))

    def _named_counters(self, counters: Tensor) -> dict[str, Tensor]:
        sizes = [shape.numel() for _, shape in self.counters]
        pieces = torch.split(counters, sizes) if sizes else ()
        return {
            name: piece.reshape(shape)
            for (name, shape), piece in zip(self.counters, pieces, strict=True)
        }

    def describe(self) -> str:
        """A digest of names and shapes, to tell models of different networks apart."""
        text = repr([(e.name, tuple(e.shape)) for e in self.entries]) + repr(self.counters)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Bank:
    """K models as a matrix: `values` (K, D), `counters` (K, C), one row per site in `sites`."""

    sites: tuple[str, ...]
    values: Tensor
    counters: Tensor

    @classmethod
    def gather(cls, models: Mapping[str, Model]) -> Bank:
        """Stacks models into a bank, without copying rows that already lie in one matrix."""
        rows = list(models.values())
        return cls(
            tuple(models),
            _matrix([model.values for model in rows]),
            _matrix([model.counters for model in rows]),
        )

    def __getitem__(self, site: str) -> Model:
        k = self.sites.index(site)
        return Model(self.values[k], self.counters[k])

    def combine(self, alpha: Tensor, layers: Layers | None = None) -> Model:
        """W = sum_k alpha_k w_k; with `layers`, w_p = sum_k alpha_{k,p} w_{k,p}.

        Args:
            alpha: (K,), or (K, P) with `layers`; cast to the models' type here.
            layers: the P layers for layer-wise weights.
        """
        self._check(alpha, layers)
        alpha = alpha.detach().to(self.values)
        if layers is None:
            values = alpha @ self.values
        else:
            values = torch.empty_like(self.values[0])
            for start, stop, p in layers.segments:
                torch.mv(self.values[:, start:stop].t(), alpha[:, p], out=values[start:stop])
        return Model(values, self.counters.amax(dim=0) if self.counters.numel() else _none(alpha))

    def project(self, gradient: Tensor, layers: Layers | None = None) -> Tensor:
        """dL/dalpha_k = <grad L(w), w_k>: (K,), or (K, P) with `layers`; float64 on the CPU.

        Args:
            gradient: grad L(w) over the trainable part of the vector, (D',) with D' <= D.
            layers: the P layers for layer-wise weights.
        """
        end = gradient.numel()
        if layers is None:
            return (self.values[:, :end] @ gradient).to("cpu", torch.float64)
        g = torch.zeros(len(self.sites), layers.P, dtype=gradient.dtype, device=gradient.device)
        for start, stop, p in layers.segments:
            if start < end:
                g[:, p] += self.values[:, start : min(stop, end)] @ gradient[start:stop]
        return g.to("cpu", torch.float64)

    def digest(self) -> str:
        """A fingerprint of the models, so that a client can tell whether it still has them."""
        digest = hashlib.blake2b(repr(self.sites).encode(), digest_size=16)
        for k in range(len(self.sites)):
            digest.update(self.values[k].cpu().contiguous().view(torch.uint8).numpy().data)
            digest.update(self.counters[k].cpu().numpy().tobytes())
        return digest.hexdigest()

    def _check(self, alpha: Tensor, layers: Layers | None) -> None:
        expected = (len(self.sites),) if layers is None else (len(self.sites), layers.P)
        if tuple(alpha.shape) != expected:
            raise AutoFedAvgError(
                f"alpha has shape {tuple(alpha.shape)}, expected {expected}", where="Bank.combine"
            )


def _aliases(network: nn.Module) -> tuple[tuple[str, str], ...]:
    """(further name, first name) of tensors that a network uses twice (tied weights)."""
    every: list[tuple[str, Tensor]] = [*network.named_parameters(remove_duplicate=False)]
    every += network.named_buffers(remove_duplicate=False)
    first: dict[int, str] = {}
    for name, tensor in every:
        first.setdefault(id(tensor), name)
    return tuple((name, first[id(t)]) for name, t in every if name != first[id(t)])


def model_for(w: Model | Bank, site: str) -> Model:
    """What a site goes on from: the global model, or its own row of a bank."""
    return w if isinstance(w, Model) else w[site]


def _tensors(
    network: nn.Module,
) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    """(trainable parameters, frozen ones and floating buffers, integer buffers), in order."""
    parameters = list(network.named_parameters())
    passing = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in network.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = [(name, b) for name, b in network.named_buffers() if name not in passing]
    return (
        [(name, p) for name, p in parameters if p.requires_grad],
        [(name, p) for name, p in parameters if not p.requires_grad]
        + [(name, b) for name, b in buffers if b.is_floating_point()],
        [(name, b) for name, b in buffers if not b.is_floating_point()],
    )


def _matrix(rows: Sequence[Tensor]) -> Tensor:
    """Stacks vectors; a view when they are already the consecutive rows of one matrix."""
    first = rows[0]
    length = first.numel()
    adjacent = all(
        row.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and row.storage_offset() == first.storage_offset() + k * length
        and row.is_contiguous()
        for k, row in enumerate(rows)
    )
    if adjacent and length:
        return first.as_strided((len(rows), length), (length, 1), first.storage_offset())
    return torch.stack(list(rows))


def _none(like: Tensor | torch.device) -> Tensor:
    device = like.device if isinstance(like, Tensor) else like
    return torch.empty(0, dtype=torch.int64, device=device)
