"""Models on their way: whole, in half the bytes, or as small steps from a model both ends have.

`bfloat16` keeps a number's first 16 bits, rounded. `difference` sends one scale for every `BLOCK`
numbers and 8 bits a number: how many steps of that scale it lies from the same number of a
reference. Both are functions of the model (and the reference) alone, and opening does the same two
operations everywhere, so both ends hold the same bits. Integer counters are never touched
(decision 32).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autofedavg.core.bank import Layout, Model
from autofedavg.core.forms import Form
from autofedavg.core.layout import no_counters
from autofedavg.federation.messages import arrays_of, model_of
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
