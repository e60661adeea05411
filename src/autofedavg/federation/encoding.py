"""How models travel: whole, in half the bytes, or as small steps from a model both ends have.

`bfloat16` keeps a number's first 16 bits, rounded. `difference` sends one scale for every `BLOCK`
numbers and 8 bits a number: how many steps of that scale it lies from the same number of a
reference. Both are functions of the model (and the reference) alone, and opening does the same two
operations everywhere, so both ends hold the same bits. Integer counters are never touched
(decision 32).

What is sent never depends on what was sent before, only how. A global model becomes what all sites
will have of it as soon as it is made (`Sender.settled`), and the server continues from that. So a
site that is sent a difference, one that is sent the whole model and one after a restart hold the
same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.forms import Form
from autofedavg.core.layout import no_counters
from autofedavg.core.site import Facts
from autofedavg.federation.messages import Message, arrays_of, model_of
from autofedavg.federation.settings import Encoding

BLOCK = 128
MOST = 127  # steps either way


class Kind(NamedTuple):
    """Shape and type of a tensor."""

    shape: torch.Size
    dtype: torch.dtype


def packed(model: Model, how: Encoding, reference: Model | None = None) -> dict[str, Tensor]:
    """A model as the arrays that travel; `difference` needs the reference."""
    if how == "float32":
        return arrays_of(model)
    counts = {"counts": model.counters} if model.counters.numel() else {}
    if how == "bfloat16":
        return {"halves": model.values.to(torch.bfloat16).view(torch.uint8), **counts}
    if reference is None:
        raise ValueError("a difference needs a reference")
    steps, scales = _steps(model.values, reference.values.to(model.values.device))
    return {"steps": steps, "scales": scales, **counts}


def opened(
    arrays: Mapping[str, Tensor],
    how: Encoding,
    dtype: torch.dtype,
    reference: Model | None = None,
    form: Form | None = None,
) -> Model:
    """The model in arrays made by `packed`.

    Args:
        arrays: what travelled.
        how: the encoding.
        dtype: the network's type.
        reference: as it was given to `packed`.
        form: the model's form, where it is not the task's own.
    """
    if how == "float32":
        return model_of(arrays, form=form)
    if how == "bfloat16":
        values = arrays["halves"].view(torch.bfloat16).to(dtype)
    elif reference is None:
        raise ValueError("a difference needs a reference")
    else:
        steps, scales = arrays["steps"], arrays["scales"]
        values = _moved(reference.values.to(steps.device), steps, scales)
    return Model(values, arrays.get("counts", no_counters(values.device)), form)


def as_received(model: Model, how: Encoding, reference: Model | None = None) -> Model:
    """A model as the other end will have it."""
    return opened(
        packed(model, how, reference), how, model.values.dtype, reference, form=model.form
    )


def kinds(like: Model, how: Encoding) -> dict[str, Kind]:
    """What `packed` makes of a model of this size, by name."""
    size = like.values.numel()
    counters = Kind(like.counters.shape, like.counters.dtype)
    some = bool(like.counters.numel())
    if how == "float32":
        values = Kind(like.values.shape, like.values.dtype)
        return {"values": values, **({"counters": counters} if some else {})}
    made = {"counts": counters} if some else {}
    if how == "bfloat16":
        return {"halves": Kind(torch.Size([2 * size]), torch.uint8), **made}
    blocks = Kind(torch.Size([_blocks(size)]), torch.float32)
    return {"steps": Kind(torch.Size([size]), torch.int8), "scales": blocks, **made}


def bytes_of(layout: Layout, how: Encoding) -> int:
    """Bytes of one model as it travels."""
    if how == "float32":
        return layout.nbytes
    element = torch.empty((), dtype=layout.dtype).element_size()
    counters = layout.nbytes - layout.size * element
    if how == "bfloat16":
        return 2 * layout.size + counters
    return layout.size + 4 * _blocks(layout.size) + counters


class Known(NamedTuple):
    """A global model and its digest."""

    digest: str
    model: Model


class Parcel(NamedTuple):
    """A model as it travels, and as it arrives."""

    arrays: Mapping[str, Tensor]
    model: Model


class Sender:
    """Sends models to the sites, and remembers which site has which.

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

    def begin(self, w: Model | Bank) -> None:
        """Training starts from w: a global model is the reference of the differences to come."""
        if self.how == "difference" and isinstance(w, Model):
            self.remember(w)

    def remember(self, w: Model) -> None:
        """Sites keep this global model: further calls name it by its digest.

        Rounded to bfloat16 it is sent every time.
        """
        if self.how == "bfloat16" or (self._current is not None and self._current.model is w):
            return
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
        """Any model of the current round; a difference is one from the model it began with."""
        how, reference = self.how, self._reference()
        if how == "difference" and reference is None:
            how = "float32"
        arrays = packed(w, how, reference)
        return Parcel(arrays, opened(arrays, how, w.values.dtype, reference, w.form))

    @property
    def sent(self) -> Facts:
        """The plain values that go with the arrays of a parcel."""
        if self.how == "difference" and self._current is not None:
            return {"sent": {"coding": "difference", "reference": self._current.digest}}
        return {"sent": {"coding": "bfloat16"}} if self.how == "bfloat16" else {}

    def message(self, site: str, w: Model, facts: Facts) -> Message:
        """The message that gives a site exactly this model."""
        if self.how == "bfloat16":
            parcel = self._exact(w)
            if parcel is not None:
                return Message(parcel.arrays, {**facts, **self.sent})
        elif self._current is not None and w is self._current.model:
            digest, has = self._current.digest, self._has.get(site)
            if has == digest:
                return Message({}, {**facts, "sent": {"coding": "same", "digest": digest}})
            if self._step is not None and has == self._step[0]:
                said = {"coding": "difference", "reference": has, "digest": digest}
                return Message(self._step[1], {**facts, "sent": said})
            return self.whole(w, facts)
        # One message for all sites that are sent the same: it is made and measured once.
        if self._plain is None or self._plain[0] is not w or self._plain[1] is not facts:
            self._plain = (w, facts, Message(arrays_of(w), facts))
        return self._plain[2]

    def whole(self, w: Model, facts: Facts) -> Message:
        """A model for a site that lacks the reference of a difference."""
        if self._current is None or w is not self._current.model:
            return Message(arrays_of(w), facts)
        said = {"coding": "float32", "digest": self._current.digest}
        return Message(arrays_of(w), {**facts, "sent": said})

    def arrived(self, sites: Iterable[str], w: Model | Bank) -> None:
        """These sites have replied, so they have w."""
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


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def _steps(values: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """(steps (D,) int8, scales (D / BLOCK,) float32) from the reference to the values.

    A number that has its reference's sign keeps it, for one step more: a variance stays positive.
    """
    difference = values - reference
    blocks = nn.functional.pad(difference, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    scales = (blocks.abs().amax(dim=1) / MOST).to(torch.float32)
    spread = _spread(scales, values)
    steps = (difference / spread).round().nan_to_num(0.0, MOST, -MOST).clamp(-MOST, MOST)
    arrived = (reference + steps * spread).sign()
    sign = values.sign()
    turned = (sign != arrived) & (sign == reference.sign())
    steps = (steps + torch.where(turned, sign, 0.0)).clamp(-MOST, MOST)
    return steps.nan_to_num(0.0).to(torch.int8), scales


def _moved(reference: Tensor, steps: Tensor, scales: Tensor) -> Tensor:
    return reference + steps.to(reference.dtype) * _spread(scales, reference)


def _spread(scales: Tensor, like: Tensor) -> Tensor:
    """Every number's scale."""
    return scales.to(like.dtype).repeat_interleave(BLOCK)[: like.numel()]
