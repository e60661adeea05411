"""Models of a run on disk: one network's named tensors, in its form, or a whole ensemble's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.ensemble import Ensemble
from autofedavg.core.forms import form_of, reshaped
from autofedavg.experiment.folder_writer import Checkpoint, RunFolder

_MEMORY = "memory."
_KEPT = "kept."
_MEMBER = "/"  # between a member's number and a tensor's name


def save_model(
    folder: RunFolder, name: str, w: Model | Bank, layout: Layout, facts: Mapping[str, Any]
) -> None:
    """Writes a model's named tensors; those of a bank with each member's number before the name."""
    formed = layout.formed(w.form)
    tensors: dict[str, Tensor] = {}
    said: dict[str, Any] = dict(facts)
    if isinstance(w, Model):
        tensors = formed.state_dict(w)
    else:
        said["sites"] = list(w.sites)
        for number, site in enumerate(w.sites):
            named = formed.state_dict(w[site])
            tensors |= {f"{number}{_MEMBER}{key}": tensor for key, tensor in named.items()}
    if w.form is not None:
        said["form"] = w.form.note()
    folder.save(name, {key: tensor.clone() for key, tensor in tensors.items()}, said)


def load_model(folder: RunFolder, name: str, layout: Layout) -> Model | Bank:
    """What `save_model` wrote."""
    saved = folder.load(name)
    form = form_of(saved.facts.get("form"))
    formed = layout.formed(form)
    if "sites" not in saved.facts:
        values, counters = _vector(formed, saved.tensors)
        return Model(values, counters, form)
    members = [_vector(formed, member) for member in _members(saved)]
    return Bank(
        tuple(saved.facts["sites"]),
        torch.stack([values for values, _ in members]),
        torch.stack([counters for _, counters in members]),
        form,
    )


def load_network(folder: RunFolder, name: str, network: nn.Module) -> nn.Module:
    """The network with what `save_model` wrote in it: in its form, or as an ensemble."""
    saved = folder.load(name)
    form = form_of(saved.facts.get("form"))
    if "sites" in saved.facts:
        return Ensemble(network, _members(saved))
    built = network if form is None else reshaped(network, form)
    built.load_state_dict(saved.tensors)
    return built


def save_state(
    folder: RunFolder,
    state: Round,
    facts: Mapping[str, Any],
    copies: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
) -> None:
    """Writes the checkpoint of a round: all that is needed to go on from it.

    Args:
        folder: the run's.
        state: after the round.
        facts: plain values.
        copies: of what stays at the sites, in a simulation.
    """
    w = state.w
    tensors = {"w.values": w.values}
    if w.counters.numel():  # safetensors keeps empty ones out
        tensors["w.counters"] = w.counters
    tensors |= {
        name: value
        for name, value in (("beta", state.beta), ("alpha", state.alpha))
        if value is not None
    }
    tensors |= {f"{_MEMORY}{name}": value for name, value in state.memory.items()}
    order = sorted(copies)
    tensors |= {
        f"{_KEPT}{number}/{name}": array
        for number, site in enumerate(order)
        for name, array in copies[site].items()
        if array.numel()
    }
    said: dict[str, Any] = {**facts, "together": state.together}
    if order:
        empty = {site: [n for n, a in copies[site].items() if not a.numel()] for site in order}
        said["kept"] = {"sites": order, "empty": empty}
    if w.form is not None:
        said["form"] = w.form.note()
    folder.save_round(state.t, tensors, said)


def load_state(saved: Checkpoint, sites: tuple[str, ...]) -> Round:
    """The round that `save_state` wrote; `sites` are those of a bank, in order."""
    values = saved.tensors["w.values"]
    counters = saved.tensors.get(
        "w.counters", torch.empty((*values.shape[:-1], 0), dtype=torch.int64)
    )
    form = form_of(saved.facts.get("form"))
    one = values.dim() == 1
    return Round(
        int(saved.facts["t"]),
        Model(values, counters, form) if one else Bank(sites, values, counters, form),
        saved.tensors.get("beta"),
        saved.tensors.get("alpha"),
        together=bool(saved.facts.get("together", False)),
        memory={
            name.removeprefix(_MEMORY): value
            for name, value in saved.tensors.items()
            if name.startswith(_MEMORY)
        },
    )


def copies_in(saved: Checkpoint) -> dict[str, dict[str, Tensor]]:
    """What sites had kept when a simulation's checkpoint was written."""
    about = saved.facts.get("kept", {"sites": [], "empty": {}})
    counters = torch.empty(0, dtype=torch.int64)  # the only arrays that may be empty
    found = {site: dict.fromkeys(about["empty"][site], counters) for site in about["sites"]}
    for key, array in saved.tensors.items():
        if key.startswith(_KEPT):
            number, _, name = key.removeprefix(_KEPT).partition("/")
            found[about["sites"][int(number)]][name] = array
    return found


def _members(saved: Checkpoint) -> list[dict[str, Tensor]]:
    """The members of an ensemble, each as the network's named tensors."""
    members: list[dict[str, Tensor]] = [{} for _ in saved.facts["sites"]]
    for key, tensor in saved.tensors.items():
        number, _, name = key.partition(_MEMBER)
        members[int(number)][name] = tensor
    return members


def _vector(layout: Layout, named: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    model = layout.model(named)
    return model.values, model.counters
