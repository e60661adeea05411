"""A plain chain of layers in other widths, and with its first layers frozen.

FedMA grows layers and freezes them one after another. A `Form` says how a network differs from the
task's own; a model carries its form with it, wherever it goes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from autofedavg.core.errors import ConfigError

# They keep units apart, whatever their number.
_BETWEEN = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Identity, nn.Flatten,
    nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)  # fmt: skip
_REMEDY = "use a chain of Conv2d and Linear layers, such as vgg9, or another method"


@dataclass(frozen=True)
class Form:
    """How a chain differs from the task's own.

    Attributes:
        widths: outputs of every layer with weights, first to last.
        frozen: how many of the first layers are not trained.
    """

    widths: tuple[int, ...]
    frozen: int = 0

    def note(self) -> dict[str, Any]:
        """The form as plain values."""
        return {"widths": list(self.widths), "frozen": self.frozen}


def form_of(note: dict[str, Any] | None) -> Form | None:
    """The form that `Form.note` wrote; None for the task's own network."""
    return None if note is None else Form(tuple(note["widths"]), int(note["frozen"]))


def reshaped(network: nn.Module, form: Form) -> nn.Module:
    """A copy of a chain in another form; its weights are not those of the original.

    Args:
        network: a plain chain (`weighted_layers`).
        form: widths and frozen layers.

    Raises:
        ConfigError: the network is no plain chain.
    """
    weighted = weighted_layers(network)
    shapes = weight_shapes([tuple(layer.weight.shape) for _, layer in weighted], form.widths)
    built = copy.deepcopy(network)
    for number, ((name, layer), shape) in enumerate(zip(weighted, shapes, strict=True)):
        for parameter, wanted in (("weight", shape), ("bias", shape[:1])):
            old = getattr(layer, parameter)
            fresh = torch.zeros(wanted, dtype=old.dtype, device=old.device)
            trained = number >= form.frozen
            setattr(built.get_submodule(name), parameter, nn.Parameter(fresh, trained))
        _set_widths(built.get_submodule(name), shape)
    return built


def weight_shapes(
    shapes: Sequence[tuple[int, ...]], widths: Sequence[int]
) -> list[tuple[int, ...]]:
    """The shapes of a chain's weights in other widths.

    Args:
        shapes: (outputs, inputs, ...) of every layer.
        widths: the new outputs of every layer.

    A layer behind a `Flatten` has a block of inputs per channel: 16 for VGG-9's first linear layer.
    """
    wanted = []
    for number, shape in enumerate(shapes):
        inputs = shape[1]
        if number:
            inputs = shape[1] // shapes[number - 1][0] * widths[number - 1]
        wanted.append((widths[number], inputs, *shape[2:]))
    return wanted


def weighted_layers(network: nn.Module) -> list[tuple[str, nn.Conv2d | nn.Linear]]:
    """(name, layer) of every layer with weights of a plain chain, in order.

    Raises:
        ConfigError: the network is no such chain.
    """
    found: list[tuple[str, nn.Conv2d | nn.Linear]] = []
    flat = True
    for name, module in _leaves(network, ""):
        problem = _unfit(module)
        if problem:
            _refuse(f"{name or 'it'} {problem}", network)
        if isinstance(module, nn.Flatten):
            flat = True
        elif isinstance(module, nn.Conv2d | nn.Linear):
            if found and not _follows(found[-1][1], module, flat):
                _refuse(f"{name} does not take what {found[-1][0]} gives", network)
            found.append((name, module))
            flat = isinstance(module, nn.Linear)
    if len(found) < 2:
        _refuse("it has fewer than two layers with weights", network)
    if len({id(layer) for _, layer in found}) < len(found):
        _refuse("it uses a layer twice", network)
    return found


def _unfit(module: nn.Module) -> str:
    """Why a module cannot be part of a plain chain; empty when it can."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        if module.bias is None:
            return "has no bias"
        if not module.weight.requires_grad:
            return "is frozen"
        return "is a grouped convolution" if getattr(module, "groups", 1) != 1 else ""
    if isinstance(module, nn.Flatten):
        whole = (module.start_dim, module.end_dim) == (1, -1)
        return "" if whole else "does not flatten whole channels"
    known = type(module) in _BETWEEN
    return "" if known else f"is a {type(module).__name__}"


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules of nested `Sequential`s, in the order in which they are called."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for key, child in module._modules.items():
        if child is not None:
            yield from _leaves(child, f"{name}.{key}" if name else key)


def _follows(before: nn.Conv2d | nn.Linear, layer: nn.Conv2d | nn.Linear, flat: bool) -> bool:
    given, taken = before.weight.shape[0], layer.weight.shape[1]
    if isinstance(layer, nn.Conv2d):
        return not flat and given == taken
    return flat and (given == taken if isinstance(before, nn.Linear) else taken % given == 0)


def _set_widths(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Keeps what a layer says of itself true."""
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = shape
    elif isinstance(layer, nn.Conv2d):
        layer.out_channels, layer.in_channels = shape[:2]


def _refuse(what: str, network: nn.Module) -> NoReturn:
    raise ConfigError(
        f"the network is no plain chain of layers: {what}",
        where=type(network).__name__,
        remedy=_REMEDY,
    )
