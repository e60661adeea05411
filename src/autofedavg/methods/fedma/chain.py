"""A plain chain of layers: the networks FedMA works on, taken apart and put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor, nn

from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.errors import ConfigError
from autofedavg.core.forms import Form

State = dict[str, Tensor]

# Modules that keep units apart, for any number of units.
_BETWEEN = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Identity, nn.Flatten,
    nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)  # fmt: skip
_REMEDY = "use a chain of Conv2d and Linear layers, such as vgg9, or another method"


class Chain:
    """A plain chain of layers, taken apart and put together by name.

    A layer's inputs fall into one block per unit of the layer before: a 3x3 kernel between
    convolutions, 4x4 consecutive inputs behind VGG-9's `Flatten`, a single one between linear
    layers.

    Args:
        layout: that of the task's own network.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.names = layout.layers("module").names
        shapes = {entry.name: entry.shape for entry in layout.entries}
        self.widths = tuple(shapes[f"{name}.weight"][0] for name in self.names)

    @property
    def P(self) -> int:
        return len(self.names)

    def units(self, model: Model, layer: int) -> Tensor:
        """(L, D): each unit's incoming weights with its bias appended; float64 on the CPU."""
        state = self._state(model)
        weight, bias = (state[f"{self.names[layer]}.{kind}"] for kind in ("weight", "bias"))
        whole = torch.cat([weight.reshape(len(bias), -1), bias[:, None]], dim=1)
        return whole.to("cpu", torch.float64)

    def with_matched(self, w_k: Bank, layer: int, units: Tensor, assigned: Tensor) -> Bank:
        """The clients' models with a layer matched and frozen, the next one taking its units.

        Args:
            w_k: the clients' models.
            layer: the matched layer, from 0.
            units: (L, D) global units.
            assigned: (K, L_k), the global unit of each client's units.
        """
        widths = list(self._form(w_k).widths)
        widths[layer] = len(units)
        form = Form(tuple(widths), layer + 1)
        models = {}
        for site, places in zip(w_k.sites, assigned, strict=True):
            state = self._state(w_k[site])
            old = state[f"{self.names[layer]}.weight"]
            matched = units.to(old)
            state[f"{self.names[layer]}.weight"] = matched[:, :-1].reshape(-1, *old.shape[1:])
            state[f"{self.names[layer]}.bias"] = matched[:, -1]
            following = f"{self.names[layer + 1]}.weight"
            state[following] = _spread(state[following], places, len(units))
            models[site] = self._model(state, form)
        return Bank.gather(models)

    def close(self, w_k: Bank, weights: Tensor) -> Model:
        """The global model: matched layers as they are, the classifier averaged by class.

        Args:
            w_k: the clients' models, alike but for the classifier.
            weights: (K, C), each client's share in each class.
        """
        state = self._state(w_k[w_k.sites[0]])
        share = weights.to(w_k.values)
        for kind in ("weight", "bias"):
            name = f"{self.names[-1]}.{kind}"
            each = torch.stack([self._state(w_k[site])[name] for site in w_k.sites])
            state[name] = torch.einsum("kc,kc...->c...", share, each)
        return self._model(state, replace(self._form(w_k), frozen=0))

    def cut_back(self, w: Model, sites: tuple[str, ...], memory: Mapping[str, Tensor]) -> Bank:
        """The global model in the original widths, for every client by its own assignments."""
        whole = self._state(w)
        models = {}
        for k, site in enumerate(sites):
            state: State = {}
            for layer, name in enumerate(self.names):
                weight, bias = whole[f"{name}.weight"], whole[f"{name}.bias"]
                if layer:
                    weight = _pick(weight, memory[str(layer - 1)][k], self._grown(w, layer - 1))
                if layer < self.P - 1:
                    rows = memory[str(layer)][k].to(weight.device)
                    weight, bias = weight[rows], bias[rows]
                state[f"{name}.weight"], state[f"{name}.bias"] = weight, bias
            models[site] = self._model(state, None)
        return Bank.gather(models)

    def _grown(self, w: Model, layer: int) -> int:
        return self._form(w).widths[layer]

    def _form(self, w: Model | Bank) -> Form:
        return w.form or Form(self.widths)

    def _state(self, model: Model) -> State:
        return self.layout.formed(model.form).state_dict(model)

    def _model(self, state: State, form: Form | None) -> Model:
        return replace(self.layout.formed(form).model(state), form=form)


def _spread(weight: Tensor, places: Tensor, width: int) -> Tensor:
    """A layer's weights for `width` inputs: each old input at its place, zeros elsewhere."""
    blocks = weight.reshape(len(weight), len(places), -1)
    wide = blocks.new_zeros(len(weight), width, blocks.shape[2])
    wide[:, places.to(weight.device)] = blocks
    return wide.reshape(len(weight), -1, *weight.shape[2:])


def _pick(weight: Tensor, places: Tensor, width: int) -> Tensor:
    """The inverse of `_spread`: the inputs at these places, of `width`."""
    blocks = weight.reshape(len(weight), width, -1)[:, places.to(weight.device)]
    return blocks.reshape(len(weight), -1, *weight.shape[2:])


def weighted_layers(network: nn.Module) -> list[tuple[str, nn.Conv2d | nn.Linear]]:
    """(name, layer) of every layer with weights of a plain chain, in order.

    Raises:
        ConfigError: the network is not a plain chain.
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


def _refuse(what: str, network: nn.Module) -> NoReturn:
    raise ConfigError(
        f"the network is no plain chain of layers: {what}",
        where=type(network).__name__,
        remedy=_REMEDY,
    )
