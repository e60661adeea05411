"""A network's layout as plain values, for a server that has only the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import ConfigError
from autofedavg.core.layout import lay_out

_FLOATS = {
    str(kind).removeprefix("torch."): kind
    for kind in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}


def layout_values(layout: Layout) -> dict[str, Any]:
    """A layout as plain values."""
    return {
        "tensors": [[entry.name, list(entry.shape)] for entry in layout.entries],
        "aliases": [list(pair) for pair in layout.aliases],
        "counters": [[name, list(shape)] for name, shape in layout.counters],
        "trainable": layout.trainable,
        "dtype": str(layout.dtype).removeprefix("torch."),
    }


def layout_from(values: Any) -> Layout:
    """The layout in plain values from outside.

    Raises:
        ConfigError: they do not describe one.
    """
    try:
        entries = lay_out([(name, torch.Size(shape)) for name, shape in values["tensors"]])
        layout = Layout(
            entries,
            tuple((alias, name) for alias, name in values["aliases"]),
            tuple((name, torch.Size(shape)) for name, shape in values["counters"]),
            values["trainable"],
            entries[-1].stop,
            _FLOATS[values["dtype"]],
        )
        if 0 < layout.trainable <= layout.size and layout_values(layout) == values:
            return layout
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError):
        pass
    raise ConfigError("its description of its network cannot be read")


def difference(one: Layout, other: Layout) -> str:
    """The first difference between two networks."""
    mine, theirs = _shapes(one), _shapes(other)
    for name in [*mine, *theirs]:
        if mine.get(name) != theirs.get(name):
            return f"{name} is {_size(mine.get(name))} here and {_size(theirs.get(name))} there"
    return "the order, sharing, type or trainability of their tensors differs"


def model_from(layout: Layout, state: Mapping[str, Tensor]) -> Model:
    """The model in named tensors from outside.

    Raises:
        ConfigError: a tensor is missing, unknown, or of another shape or type.
    """
    shapes = _shapes(layout)
    known, floats = {*shapes, *(alias for alias, _ in layout.aliases)}, {*layout.names}
    for name in [*shapes, *state]:
        if name not in state:
            raise ConfigError(f"its model has no tensor {name}")
        if name not in known:
            raise ConfigError(f"its model has a tensor {name}, which the network does not have")
        tensor, shape = state[name], shapes.get(name)
        if shape is not None and tuple(tensor.shape) != shape:
            raise ConfigError(
                f"its model has {name} as {_size(tuple(tensor.shape))}, the network as "
                f"{_size(shape)}"
            )
        if name in floats and tensor.dtype != layout.dtype:
            raise ConfigError(f"its model has {name} in another type than {layout.dtype}")
    return layout.model(state)


def _shapes(layout: Layout) -> dict[str, tuple[int, ...]]:
    shapes = {entry.name: tuple(entry.shape) for entry in layout.entries}
    return shapes | {name: tuple(shape) for name, shape in layout.counters}


def _size(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "x".join(map(str, shape)) or "one number"
