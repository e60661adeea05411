"""Every client's model to every other client: none its own, and none twice.

A request names all models by their digests and carries those that the client cannot have. The
client puts its bank together from these, from its own model and from what it holds, and says what
is missing. A request that is repeated carries no model until that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model, joint_digest
from autofedavg.core.site import Facts
from autofedavg.federation.calls import Ask, Calls
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.encoding import Parcel, Sender, as_received, opened
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.replies import BadReply, missing_of


@dataclass(frozen=True)
class Shared:
    """The models of a round, as every client will have them."""

    sites: tuple[str, ...]
    digest: str
    digests: Mapping[str, str]
    parcels: Mapping[str, Parcel]
    sent: Facts

    def message(self, t: int, names: Iterable[str] = (), *, whole: bool = False) -> Message:
        """These sites' models, or none, and the digests of all; `whole`: as float32."""
        facts: Facts = {"t": t, "sites": list(self.sites), "digest": self.digest}
        facts["digests"] = dict(self.digests)
        arrays: dict[str, Tensor] = {}
        for name in names:
            parcel = self.parcels[name]
            carried = arrays_of(parcel.model) if whole else parcel.arrays
            arrays |= {f"{kind}/{name}": array for kind, array in carried.items()}
        return Message(arrays, facts if whole else {**facts, **self.sent})


class Sharing:
    """The server's side of `share_models`.

    Args:
        calls: asks the clients.
        sender: how models travel.
    """

    def __init__(self, calls: Calls, sender: Sender) -> None:
        self._calls, self._sender = calls, sender
        self._uploads: Mapping[str, Mapping[str, Tensor]] = {}
        self._trained: Bank | None = None
        self.altered: set[str] = set()  # sites whose model changes on its way up
        self.shared: Shared | None = None

    def uploaded(self, w_k: Bank, arrays: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keeps the models of a round, and the arrays they came in where these can be sent on."""
        self._trained, self._uploads = w_k, arrays

    def share(self, t: int, w_k: Bank) -> None:
        """Sends every client the models it does not have."""
        before, self.shared = self.shared, self._packed(w_k)
        shared = self.shared
        repeated = before is not None and before.digest == shared.digest
        wanted = {
            name: [k for k in shared.sites if k != name or name in self.altered]
            for name in shared.sites
        }
        self.deliver(t, shared, {name: [] for name in wanted} if repeated else wanted)

    def deliver(
        self,
        t: int,
        shared: Shared,
        wanted: Mapping[str, Sequence[str]],
        s: int | None = None,
        needed: int | None = None,
    ) -> list[str]:
        """Sends each client these models, and then what it says is missing; who has them all."""

        def mend(name: str, answer: Message) -> Message | None:
            missing = missing_of(answer, shared.sites)
            if not missing:
                return None
            if answer.facts.get("altered") is True:
                self.altered.add(name)
            return shared.message(t, missing, whole=answer.facts.get("whole") is True)

        def read(_: str, answer: Message) -> None:
            if missing_of(answer, shared.sites):
                raise BadReply("cannot keep the models it is sent")

        def again(_: str) -> Message:
            return shared.message(t)

        messages = {name: shared.message(t, models) for name, models in wanted.items()}
        ask = Ask("share_models", messages, read, t, s, needed, again=again, mend=mend)
        return list(self._calls.ask(ask))

    def _packed(self, w_k: Bank) -> Shared:
        uploads = self._uploads if self._trained is w_k else {}
        parcels = {
            site: Parcel(uploads[site], w_k[site])
            if site in uploads
            else self._sender.parcel(w_k[site])
            for site in w_k.sites
        }
        digests = {site: parcel.model.digest() for site, parcel in parcels.items()}
        return Shared(w_k.sites, joint_digest(digests), digests, parcels, self._sender.sent)


# --- at a client ---------------------------------------------------------------------------------


def assembled(
    message: Message, site: str, state: ClientState, dtype: torch.dtype, device: torch.device
) -> Facts:
    """Puts the bank of a `share_models` together, on `device`, from the message and the state.

    Returns:
        What to answer: nothing where the bank is whole; else the models that are `missing`,
        whether they must come `whole` as the reference is not here, and whether this site's own
        model is `altered`: here, but not as the server has it.
    """
    facts = message.facts
    if state.bank(facts["digest"]) is not None:
        return {}
    how: Facts = facts.get("sent", {"coding": "float32"})
    reference = state.reference(how["reference"]) if "reference" in how else None
    lacking = how["coding"] == "difference" and reference is None
    kept = state.parts()
    models: dict[str, Model] = {}
    carried = _by_site(message)
    for name in facts["sites"]:
        digest = facts["digests"][name]
        arrays = carried.get(name)
        if arrays and not ("steps" in arrays and lacking):
            models[name] = opened(arrays, how["coding"], dtype, reference)
        elif digest in kept:
            models[name] = kept[digest]
        elif name == site and (own := _own(state, how, reference, digest)) is not None:
            models[name] = own
    missing = [name for name in facts["sites"] if name not in models]
    if not missing:
        # Messages arrive in main memory; a site's own model may be on its GPU.
        here = {
            name: Model(model.values.to(device), model.counters.to(device), model.form)
            for name, model in models.items()
        }
        state.keep_bank(Bank.gather(here), facts["digest"])
        return {}
    state.keep_parts({facts["digests"][name]: model for name, model in models.items()})
    answer: Facts = {"missing": missing}
    if lacking:
        answer["whole"] = True
    if site in missing and not lacking and state.own() is not None:
        answer["altered"] = True
    return answer


def _own(state: ClientState, how: Facts, reference: Model | None, digest: str) -> Model | None:
    """This site's own model, where it is what the others are sent of it."""
    own = state.own()
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
