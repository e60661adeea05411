"""A line of rounds.jsonl: all that is measured in one round."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from autofedavg.algorithm import Round
from autofedavg.federation.port import Federation


def round_line(state: Round, federation: Federation, scores: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a round that has just been scored.

    Args:
        state: the round.
        federation: the clients; what it has counted and seen since the last round is taken.
        scores: validation scores, and test scores where there are any, by name.
    """
    account = federation.take_account()
    return {
        "t": state.t,
        "alpha": listed(state.alpha),
        "beta": listed(state.beta),
        "learned": state.learned,
        "loss": state.losses,
        **_learning(federation),
        **scores,
        "calls": {call: asdict(cost) for call, cost in account.items()},
        "bytes_down": sum(cost.down for cost in account.values()),
        "bytes_up": sum(cost.up for cost in account.values()),
        "answered": list(state.w_k.sites) if state.w_k else [],
        **federation.take_remarks(),
        "events": federation.take_events(),
        "time": time.time(),
    }


def listed(values: Tensor | None) -> list[Any] | None:
    """Weights as plain numbers."""
    return None if values is None else list(values.tolist())


def _learning(federation: Federation) -> dict[str, Any]:
    """Losses of LearnAggWeight's steps, and whether it paid, in a round that called it."""
    losses, verdict = federation.take_learning_losses(), federation.take_verdict()
    judged = {"verdict": verdict} if verdict else {}
    if not losses:  # learned blindly: the mean of all sites is among the remarks
        return judged
    shown = {  # of six digits, being many
        site: [value if value is None else float(f"{value:.6g}") for value in values]
        for site, values in losses.items()
    }
    return {"learning_loss": shown, **judged}
