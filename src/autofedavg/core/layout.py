"""One network as one vector: where each of its tensors lies.

First every trainable parameter, then frozen parameters and floating buffers. Integer buffers
(BatchNorm's counters) are a second vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from autofedavg.core.errors import ConfigError
from autofedavg.core.forms import Form, weight_shapes

LayerKind = Literal["module", "tensor"]
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Model:
    """One network's state: `values` (D,) floating, `counters` (C,) int64.

    `form` is given where the network has other widths than the task's, or frozen layers.
    """

    values: Tensor
    counters: Tensor
    form: Form | None = None

    def clone(self) -> Model:
        return Model(self.values.clone(), self.counters.clone(), self.form)

    def digest(self) -> str:
        """A fingerprint of the numbers, so that two ends can tell whether they have the same."""
        # SHA-256, as processors have it built in: twice as fast as blake2b.
        digest = hashlib.sha256(self.values.cpu().contiguous().view(torch.uint8).numpy().data)
        digest.update(self.counters.cpu().numpy().tobytes())
        return digest.hexdigest()[:32]


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

    `normalisation` has the (start, stop) segments of normalisation layers, affine parameters and
    statistics alike: by the type of the module, so a layout read from names alone has none.

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
    normalisation: tuple[tuple[int, int], ...] = field(default=(), compare=False)

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
        entries = lay_out([(name, tensor.shape) for name, tensor in [*trainable, *rest]])
        return cls(
            entries,
            _aliases(network),
            tuple((name, tensor.shape) for name, tensor in counters),
            sum(tensor.numel() for _, tensor in trainable),
            entries[-1].stop,
            kinds.pop(),
            _normalisation(network, entries),
        )

    def formed(self, form: Form | None) -> Layout:
        """The layout of the same chain of layers in another form."""
        if form is None:
            return self
        names = self.layers("module").names
        known = {entry.name: tuple(entry.shape) for entry in self.entries}
        shapes = weight_shapes([known[f"{name}.weight"] for name in names], form.widths)
        layers = [
            [(f"{name}.weight", torch.Size(shape)), (f"{name}.bias", torch.Size(shape[:1]))]
            for name, shape in zip(names, shapes, strict=True)
        ]
        trained = [named for layer in layers[form.frozen :] for named in layer]
        frozen = [named for layer in layers[: form.frozen] for named in layer]
        entries = lay_out([*trained, *frozen])
        size = sum(shape.numel() for _, shape in trained)
        return replace(self, entries=entries, trainable=size, size=entries[-1].stop)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @property
    def nbytes(self) -> int:
        """Bytes of one model as it travels."""
        counted = sum(shape.numel() for _, shape in self.counters)
        return self.size * torch.empty((), dtype=self.dtype).element_size() + 8 * counted

    def holds(self, model: Model) -> bool:
        """Whether a model has this network's sizes and type."""
        counted = sum(shape.numel() for _, shape in self.counters)
        values = model.values.shape == (self.size,) and model.values.dtype == self.dtype
        return values and model.counters.shape == (counted,)

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
        return Model(values, torch.cat(whole) if whole else no_counters(values.device))

    def state_dict(self, model: Model) -> dict[str, Tensor]:
        """The model as named tensors, loadable into the network with `load_state_dict`."""
        named = {e.name: model.values[e.start : e.stop].reshape(e.shape) for e in self.entries}
        named |= self._named_counters(model.counters)
        return named | {alias: named[name] for alias, name in self.aliases if name in named}

    def model(self, state: Mapping[str, Tensor]) -> Model:
        """The inverse of `state_dict`."""
        values = torch.cat([state[entry.name].reshape(-1) for entry in self.entries])
        whole = [state[name].reshape(-1).to(torch.int64) for name, _ in self.counters]
        return Model(values, torch.cat(whole) if whole else no_counters(values.device))

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


def lay_out(named: Sequence[tuple[str, torch.Size]]) -> tuple[_Entry, ...]:
    """Tensors one behind another."""
    entries, start = [], 0
    for name, shape in named:
        stop = start + shape.numel()
        entries.append(_Entry(name, name.rpartition(".")[0], shape, start, stop))
        start = stop
    return tuple(entries)


def _normalisation(network: nn.Module, entries: Sequence[_Entry]) -> tuple[tuple[int, int], ...]:
    """The segments that belong to normalisation layers, neighbours as one."""
    norms = [
        (name, module) for name, module in network.named_modules() if isinstance(module, NORMS)
    ]
    owners = {owner for name, norm in norms for owner, _ in norm.named_modules(prefix=name)}
    segments: list[tuple[int, int]] = []
    for entry in entries:
        if entry.module in owners:
            adjoins = bool(segments) and segments[-1][1] == entry.start
            segments.append((segments.pop()[0] if adjoins else entry.start, entry.stop))
    return tuple(segments)


def _aliases(network: nn.Module) -> tuple[tuple[str, str], ...]:
    """(further name, first name) of tensors that a network uses twice (tied weights)."""
    every: list[tuple[str, Tensor]] = [*network.named_parameters(remove_duplicate=False)]
    every += network.named_buffers(remove_duplicate=False)
    first: dict[int, str] = {}
    for name, tensor in every:
        first.setdefault(id(tensor), name)
    return tuple((name, first[id(t)]) for name, t in every if name != first[id(t)])


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


@cache
def no_counters(device: torch.device) -> Tensor:
    """The counters of a network without integer buffers: nothing, so one tensor does for all."""
    return torch.empty(0, dtype=torch.int64, device=device)
