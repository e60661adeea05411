"""A plain chain of layers at the server: what FedMA takes apart and puts together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.forms import Form

State = dict[str, Tensor]


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
