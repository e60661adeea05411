"""What a site remembers between requests, and how it reads models with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.forms import form_of
from autofedavg.core.site import Facts
from autofedavg.federation.encoding import as_received, opened
from autofedavg.federation.messages import Message


class ClientState(Protocol):
    """What a site remembers: its own model, the bag of all models, and the last global one."""

    def keep_own(self, model: Model) -> Model:
        """Remembers a copy of w_k; returns the remembered one."""

    def own(self) -> Model | None:
        """The w_k kept last."""

    def keep_bank(self, bank: Bank, digest: str) -> None:
        """Remembers all models under their digest, and no parts any more."""

    def bank(self, digest: str) -> Bank | None:
        """The models of this digest, or None when they are not here."""

    def keep_parts(self, parts: Mapping[str, Model]) -> None:
        """Remembers some models of a bank, by their digests, until it is whole."""

    def parts(self) -> Mapping[str, Model]:
        """The parts kept last."""

    def keep_reference(self, model: Model, digest: str) -> None:
        """Remembers the global model that differences are told from."""

    def reference(self, digest: str) -> Model | None:
        """The global model of this digest, or None when it is not here."""


@dataclass
class MemoryState:
    """A shelf in the process's memory."""

    _own: Model | None = None
    _bank: tuple[str, Bank] | None = field(default=None, repr=False)
    _parts: Mapping[str, Model] = field(default_factory=dict, repr=False)
    _reference: tuple[str, Model] | None = field(default=None, repr=False)

    def keep_own(self, model: Model) -> Model:
        self._own = model.clone()
        return self._own

    def own(self) -> Model | None:
        return self._own

    def keep_bank(self, bank: Bank, digest: str) -> None:
        self._bank, self._parts = (digest, bank), {}

    def bank(self, digest: str) -> Bank | None:
        return self._bank[1] if self._bank and self._bank[0] == digest else None

    def keep_parts(self, parts: Mapping[str, Model]) -> None:
        self._parts = dict(parts)

    def parts(self) -> Mapping[str, Model]:
        return self._parts

    def keep_reference(self, model: Model, digest: str) -> None:
        self._reference = (digest, model)

    def reference(self, digest: str) -> Model | None:
        return self._reference[1] if self._reference and self._reference[0] == digest else None


def received(message: Message, client_state: ClientState, dtype: torch.dtype) -> Model | None:
    """The model that a note carries; None where it is told from one that is not here."""
    form = form_of(message.facts.get("form"))
    how: Facts = message.facts.get("sent", {"coding": "float32"})
    coding, digest = how["coding"], how.get("digest")
    if digest is None:  # nothing to remember
        told_from = client_state.reference(how["reference"]) if "reference" in how else None
        if coding == "difference" and told_from is None:
            return None
        return opened(message.arrays, coding, dtype, told_from, form)
    known = client_state.reference(digest)  # also where the same request comes twice
    if known is not None:
        return known
    if coding == "same":
        return None
    model = _told(message, how, client_state, dtype)
    if model is not None:
        client_state.keep_reference(model, digest)
    return model


def _told(
    message: Message, how: Facts, client_state: ClientState, dtype: torch.dtype
) -> Model | None:
    """A global model to be remembered: whole, or as a difference that leads to its digest."""
    if how["coding"] == "float32":
        return opened(message.arrays, "float32", dtype).clone()
    reference = client_state.reference(how["reference"])
    if reference is None:
        return None
    model = opened(message.arrays, "difference", dtype, reference)
    return model if model.digest() == how["digest"] else None


def assembled(message: Message, site: str, client_state: ClientState, dtype: torch.dtype) -> Facts:
    """Puts the bank of a `share_models` together from the note and from what is here.

    Returns:
        What to answer: nothing where the bank is whole; else the models that are `missing`,
        whether they must come `whole` as the reference is not here, and whether this site's own
        model is `altered`: here, but not as the server has it.
    """
    facts = message.facts
    if client_state.bank(facts["digest"]) is not None:
        return {}
    how: Facts = facts.get("sent", {"coding": "float32"})
    reference = client_state.reference(how["reference"]) if "reference" in how else None
    lacking = how["coding"] == "difference" and reference is None
    kept = client_state.parts()
    models: dict[str, Model] = {}
    carried = _by_site(message)
    for name in facts["sites"]:
        digest = facts["digests"][name]
        arrays = carried.get(name)
        if arrays and not ("steps" in arrays and lacking):
            models[name] = opened(arrays, how["coding"], dtype, reference)
        elif digest in kept:
            models[name] = kept[digest]
        elif name == site and (own := _own(client_state, how, reference, digest)) is not None:
            models[name] = own
    missing = [name for name in facts["sites"] if name not in models]
    if not missing:
        client_state.keep_bank(Bank.gather(models), facts["digest"])
        return {}
    client_state.keep_parts({facts["digests"][name]: model for name, model in models.items()})
    answer: Facts = {"missing": missing}
    if lacking:
        answer["whole"] = True
    if site in missing and not lacking and client_state.own() is not None:
        answer["altered"] = True
    return answer


def _own(
    client_state: ClientState, how: Facts, reference: Model | None, digest: str
) -> Model | None:
    """This site's own model, where it is what the others are sent of it."""
    own = client_state.own()
    if own is None or own.digest() == digest:
        return own
    if how["coding"] == "float32" or (how["coding"] == "difference" and reference is None):
        return None
    sent = as_received(own, how["coding"], reference)
    return sent if sent.digest() == digest else None


def _by_site(message: Message) -> dict[str, dict[str, Tensor]]:
    """Every site's arrays in a bag of models."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, array in message.arrays.items():
        kind, _, owner = key.partition("/")
        found.setdefault(owner, {})[kind] = array
    return found
