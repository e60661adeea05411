"""Every client's model to every other client: none its own, and none twice.

A request names all models by their digests and carries those that the client cannot have. The
client puts its bank together from these, from its own model and from what it holds, and says what
is missing. A request that is repeated carries no model until that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from autofedavg.core.bank import Bank, joint_digest
from autofedavg.core.site import Facts
from autofedavg.federation.calls import Ask, Calls
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.replies import BadReply, missing_of
from autofedavg.federation.sending import Parcel, Sending


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
        sending: in what form models travel.
    """

    def __init__(self, calls: Calls, sending: Sending) -> None:
        self._calls, self._sending = calls, sending
        self._uploads: Mapping[str, Mapping[str, Tensor]] = {}
        self._trained: Bank | None = None
        self.altered: set[str] = set()  # sites whose model changes on its way up
        self.shared: Shared | None = None

    def came(self, w_k: Bank, uploads: Mapping[str, Mapping[str, Tensor]]) -> None:
        """The models of a round, and the arrays they came in where these can be passed on."""
        self._trained, self._uploads = w_k, uploads

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
            else self._sending.parcel(w_k[site])
            for site in w_k.sites
        }
        digests = {site: parcel.model.digest() for site, parcel in parcels.items()}
        return Shared(w_k.sites, joint_digest(digests), digests, parcels, self._sending.sent)
