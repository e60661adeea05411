"""What a site remembers between requests, and how it reads the models it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from autofedavg.core.bank import Bank, Model
from autofedavg.core.forms import form_of
from autofedavg.core.site import Facts
from autofedavg.federation.encoding import opened
from autofedavg.federation.messages import Message
from autofedavg.federation.personal import KeptStates
from autofedavg.federation.secure_sum import MaskState


@dataclass
class ClientState:
    """What a site remembers: models of its own and of others, what a local rule keeps, its key."""

    _own: Model | None = None
    _bank: tuple[str, Bank] | None = field(default=None, repr=False)
    _parts: Mapping[str, Model] = field(default_factory=dict, repr=False)
    _reference: tuple[str, Model] | None = field(default=None, repr=False)
    kept: KeptStates = field(default_factory=KeptStates, repr=False)
    masks: MaskState = field(default_factory=MaskState, repr=False)

    def keep_own(self, model: Model) -> Model:
        """Keeps a copy of w_k; returns the copy."""
        self._own = model.clone()
        return self._own

    def own(self) -> Model | None:
        """The w_k kept last."""
        return self._own

    def keep_bank(self, bank: Bank, digest: str) -> None:
        """Keeps all models under their digest, and no parts any more."""
        self._bank, self._parts = (digest, bank), {}

    def bank(self, digest: str) -> Bank | None:
        """The models of this digest, or None when they are not here."""
        return self._bank[1] if self._bank and self._bank[0] == digest else None

    def keep_parts(self, parts: Mapping[str, Model]) -> None:
        """Keeps some models of a bank, by their digests, until it is whole."""
        self._parts = dict(parts)

    def parts(self) -> Mapping[str, Model]:
        """The parts kept last."""
        return self._parts

    def keep_reference(self, model: Model, digest: str) -> None:
        """Keeps the global model that differences start from."""
        self._reference = (digest, model)

    def reference(self, digest: str) -> Model | None:
        """The global model of this digest, or None when it is not here."""
        return self._reference[1] if self._reference and self._reference[0] == digest else None


def received(message: Message, state: ClientState, dtype: torch.dtype) -> Model | None:
    """The model that a message carries; None for a difference from one that is not here."""
    form = form_of(message.facts.get("form"))
    how: Facts = message.facts.get("sent", {"coding": "float32"})
    coding, digest = how["coding"], how.get("digest")
    if digest is None:  # nothing to remember
        told_from = state.reference(how["reference"]) if "reference" in how else None
        if coding == "difference" and told_from is None:
            return None
        return opened(message.arrays, coding, dtype, told_from, form)
    known = state.reference(digest)  # also where the same request comes twice
    if known is not None:
        return known
    if coding == "same":
        return None
    model = _told(message, how, state, dtype)
    if model is not None:
        state.keep_reference(model, digest)
    return model


def _told(message: Message, how: Facts, state: ClientState, dtype: torch.dtype) -> Model | None:
    """A global model to keep: whole, or a difference that leads to its digest."""
    if how["coding"] == "float32":
        return opened(message.arrays, "float32", dtype).clone()
    reference = state.reference(how["reference"])
    if reference is None:
        return None
    model = opened(message.arrays, "difference", dtype, reference)
    return model if model.digest() == how["digest"] else None
