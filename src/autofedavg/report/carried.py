"""The bytes of every round by call, each model with the call that it is for.

A site that keeps the global model gets it once, with the first call that needs it: it is scored
after round t, and trained from in round t + 1. Where it is kept, the training has to be charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autofedavg.report.repeats import Repeat

Costs = Mapping[str, Mapping[str, Any]]


def charged(repeat: Repeat) -> Iterator[tuple[dict[str, Any], Costs]]:
    """Every round's line and the costs of its calls; none where an earlier version wrote none.

    The last model is not trained from, and stays with the call that scores it.
    """
    if not _kept(repeat):
        yield from ((line, line.get("calls", {})) for line in repeat.rounds)
        return
    scored = 0
    for line in repeat.rounds:
        calls: Costs = line.get("calls", {})
        early = (
            {"masked_gradient"} if line is repeat.rounds[-1] else {"masked_gradient", "evaluate"}
        )
        sent = {call: calls[call].get("down", 0) for call in early & calls.keys()}
        costs = {
            call: {**cost, "down": 0} if call in sent else cost for call, cost in calls.items()
        }
        trained = costs.get("local_train", {})
        down = trained.get("down", 0) + scored + sent.get("masked_gradient", 0)
        yield line, {**costs, "local_train": {**trained, "down": down}}
        scored = sent.get("evaluate", 0)


def _kept(repeat: Repeat) -> bool:
    """Whether sites keep the global model for the calls to come (decisions 32 and 62)."""
    down = repeat.config.get("exchange", {}).get("down", "float32")
    return bool(
        down == "difference" or (down == "float32" and repeat.method.get("learning") == "blind")
    )
