"""Models on their way to the sites: which each of them has, and in what form the rest travels.

What is sent never depends on what was sent before, only how. A global model becomes what all sites
will have of it as soon as it is made (`settled`), and the server goes on from that; so a site that
is told a difference, one that is sent the whole model and one after a restart hold the same bits
(decision 32).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from autofedavg.core.bank import Model
from autofedavg.core.site import Facts
from autofedavg.federation.encoding import opened, packed
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.settings import Encoding


class Known(NamedTuple):
    """A global model and its digest."""

    digest: str
    model: Model


class Parcel(NamedTuple):
    """A model as it travels, and as it arrives."""

    arrays: Mapping[str, Tensor]
    model: Model


class Sending:
    """The way down.

    Args:
        how: the encoding.
    """

    def __init__(self, how: Encoding) -> None:
        self.how = how
        self._current: Known | None = None
        self._step: tuple[str, Mapping[str, Tensor]] | None = None  # from which, and how
        self._has: dict[str, str] = {}
        self._rounded: tuple[Model, Parcel] | None = None
        self._plain: tuple[Model, Facts, Message] | None = None

    def begin(self, w: Model) -> None:
        """Training starts from w: what follows is told as a difference from it."""
        if self.how == "difference" and (self._current is None or self._current.model is not w):
            self._current, self._step = Known(w.digest(), w), None

    def settled(self, w: Model) -> Model:
        """A new global model as all sites will have it: w itself, but for lossy encodings."""
        if self.how == "float32":
            return w
        parcel = self.parcel(w)
        if self.how == "difference" and self._current is not None:
            self._step = (self._current.digest, parcel.arrays)
            self._current = Known(parcel.model.digest(), parcel.model)
        return parcel.model

    def parcel(self, w: Model) -> Parcel:
        """Any model of the round under way; a difference is told from the model it began with."""
        how, reference = self.how, self._reference()
        if how == "difference" and reference is None:
            how = "float32"
        arrays = packed(w, how, reference)
        return Parcel(arrays, opened(arrays, how, w.values.dtype, reference, w.form))

    @property
    def sent(self) -> Facts:
        """What must be said beside the arrays of a parcel."""
        if self.how == "difference" and self._current is not None:
            return {"sent": {"coding": "difference", "reference": self._current.digest}}
        return {"sent": {"coding": "bfloat16"}} if self.how == "bfloat16" else {}

    def message(self, site: str, w: Model, facts: Facts) -> Message:
        """What a site is sent of a model that it is to have exactly."""
        if self.how == "bfloat16":
            parcel = self._exact(w)
            if parcel is not None:
                return Message(parcel.arrays, {**facts, **self.sent})
        elif self._current is not None and w is self._current.model:
            digest, has = self._current.digest, self._has.get(site)
            if has == digest:
                return Message({}, {**facts, "sent": {"coding": "same", "digest": digest}})
            if self._step is not None and has == self._step[0]:
                told = {"coding": "difference", "reference": has, "digest": digest}
                return Message(self._step[1], {**facts, "sent": told})
            return self.whole(w, facts)
        # The same note for all sites that are sent the same: it is made and measured once.
        if self._plain is None or self._plain[0] is not w or self._plain[1] is not facts:
            self._plain = (w, facts, Message(arrays_of(w), facts))
        return self._plain[2]

    def whole(self, w: Model, facts: Facts) -> Message:
        """A model for a site that lacks what it would be told from."""
        if self._current is None or w is not self._current.model:
            return Message(arrays_of(w), facts)
        told = {"coding": "float32", "digest": self._current.digest}
        return Message(arrays_of(w), {**facts, "sent": told})

    def arrived(self, sites: Iterable[str], w: Model) -> None:
        """These sites have answered, so they have w."""
        if self._current is not None and w is self._current.model:
            self._has |= dict.fromkeys(sites, self._current.digest)

    def _reference(self) -> Model | None:
        return None if self._current is None else self._current.model

    def _exact(self, w: Model) -> Parcel | None:
        """The parcel of a model that it carries without loss; remembered, as all sites get it."""
        if self._rounded is None or self._rounded[0] is not w:
            self._rounded = (w, self.parcel(w))
        parcel = self._rounded[1]
        return parcel if torch.equal(parcel.model.values, w.values) else None
