"""The client state in Flower's `Context.state`, which a SuperNode keeps between messages.

Flower starts a process for every message, so nothing stays in memory. A state that is lost, as when
the SuperNode restarts, is harmless: the client replies that it lacks a model and is sent it again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import RecordDict
from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import RunError
from autofedavg.core.forms import form_of
from autofedavg.core.site import Facts
from autofedavg.engines.dropin.responder import BankState
from autofedavg.engines.flower.codec import from_record, to_record
from autofedavg.federation.messages import Message, arrays_of, facts_of, model_of
from autofedavg.federation.secure_sum import MaskState
from autofedavg.federation.serialization import WireError

RECORD = "autofedavg"
MOST_BYTES = 2**31 - 2**24  # Flower carries a context as one Protocol Buffers message


class ContextState(BankState):
    """Reads the state when it is made, and writes it in `save`.

    Args:
        state: `Context.state`; other records in it stay as they are.
        device: where the models go.
        owner: identifies the job; the state of another job is not read.

    Attributes:
        history: other plain values to keep.
    """

    def __init__(self, state: RecordDict, device: torch.device, owner: str = "") -> None:
        super().__init__()
        self._records, self._owner = state, owner
        self.history: Facts = {}
        try:
            message = from_record(state.get(RECORD))
        except WireError:  # none yet, or one of another version
            return
        if message.facts.get("owner") == owner:
            self._restore(message.facts, {k: a.to(device) for k, a in message.arrays.items()})

    def keep_own(self, model: Model) -> Model:
        self.forget()  # the bank is of an earlier round, and every message carries the state
        return super().keep_own(model)

    def save(self) -> None:
        """Writes the state into the context.

        Raises:
            RunError: it is too large for Flower.
        """
        models = {f"part/{digest}": model for digest, model in self._parts.items()}
        facts: Facts = {"owner": self._owner, "parts": [*self._parts]}
        if self._own is not None:
            models["own"] = self._own
            facts["own"] = facts_of(self._own)
        if self._reference is not None:
            facts["reference"], models["reference"] = self._reference
        if self._bank is not None:
            digest, bank = self._bank
            models |= {f"bank/{site}": bank[site] for site in bank.sites}
            facts["bank"] = {"digest": digest, "sites": [*bank.sites], **facts_of(bank)}
        facts["kept"] = [*self.kept.states]
        facts["masks"] = {"private": self.masks.private, "given": self.masks.given}
        if not models and not self.history and not self.kept.states:
            self._records.pop(RECORD, None)
            return
        arrays = {
            f"{kind}/{name}": array
            for name, model in models.items()
            for kind, array in arrays_of(model).items()
        }
        kept = self.kept.message(self.kept.states).arrays
        arrays |= {f"kept/{key}": array for key, array in kept.items()}
        message = Message(arrays, {**facts, "history": self.history})
        if message.nbytes > MOST_BYTES:
            raise RunError(
                f"the models that this site must keep have {message.nbytes} bytes, and Flower "
                f"keeps at most {MOST_BYTES}; use FLARE, or method.learning = 'server'"
            )
        self._records[RECORD] = to_record(message)

    def _restore(self, facts: Facts, arrays: Mapping[str, Tensor]) -> None:
        self.history = facts["history"]
        given = {
            where: (a, sites, seen) for where, (a, sites, seen) in facts["masks"]["given"].items()
        }
        self.masks = MaskState(facts["masks"]["private"], given)
        kept = {k.removeprefix("kept/"): a for k, a in arrays.items() if k.startswith("kept/")}
        self.kept.read(Message(kept, {}))
        self._parts = {digest: model_of(arrays, f"part/{digest}") for digest in facts["parts"]}
        if "own" in facts:
            self._own = model_of(arrays, "own", form_of(facts["own"].get("form")))
        if "reference" in facts:
            self._reference = (facts["reference"], model_of(arrays, "reference"))
        if "bank" in facts:
            about = facts["bank"]
            form = form_of(about.get("form"))
            models = {site: model_of(arrays, f"bank/{site}", form) for site in about["sites"]}
            self._bank = (about["digest"], Bank.gather(models))
