"""Losses that clients send: checked, and remembered over rounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autofedavg.core.errors import ConfigError
from autofedavg.methods.averaging import Aggregation

LEAST = 1e-10  # a loss of 0 counts as this one: rules divide by losses


def positive(at: Aggregation, losses: Mapping[str, float]) -> Tensor:
    """The losses of the clients that replied, (K',), in the order of the bank.

    Raises:
        ConfigError: one is negative, so ratios and powers of losses mean nothing.
    """
    found = at.told(losses)
    if bool((found < 0).any()):
        worst = int(found.argmin())
        raise ConfigError(
            f"the loss of site {at.w_k.sites[worst]} in round {at.t} is {float(found[worst]):g}; "
            "the method needs losses that are never negative",
            where="method",
            remedy="use a loss from 0, or a method that does not weigh sites by their losses",
        )
    return found.clamp(min=LEAST)


def remembered(at: Aggregation, length: int) -> tuple[Tensor, Tensor]:
    """This round's training losses, (K',), and those of earlier rounds, (K', length).

    The earlier ones are those of rounds in which the client took part, latest first, and NaN where
    there were fewer. This round's go into the memory.
    """
    now = positive(at, at.trained.losses)
    kept = at.memory.get("losses")
    if kept is None:
        kept = torch.full((at.federation.K, length), torch.nan, dtype=torch.float64)
    earlier = kept[at.rows]
    latest = torch.cat([now[:, None], earlier[:, :-1]], dim=1)
    at.memory["losses"] = kept.index_copy(0, at.rows, latest)
    return now, earlier
