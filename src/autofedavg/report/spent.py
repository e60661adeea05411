"""What a run has spent by the end of each round, without what evaluating costs.

How often a model is evaluated is the study's choice. Bytes and seconds of training and of learning
the weights are the method's.
"""

from __future__ import annotations

from typing import NamedTuple

from autofedavg.report.carried import charged
from autofedavg.report.costs import BYTES, MEGA, WAYS
from autofedavg.report.repeats import Repeat

EVALUATING = BYTES["evaluating"]


class Spent(NamedTuple):
    """MB of all sites, both ways, and seconds, from the first round to the end of one."""

    megabytes: float
    seconds: float


def spent_by(repeat: Repeat) -> dict[int, Spent]:
    """Round -> what it took to get there; nothing from a round on whose costs are not known.

    A round's seconds are the time since the round before, less evaluating. Of the first round after
    a start only its calls are known.
    """
    starts = {int(entry["after_round"]) for entry in repeat.environment.get("resumed", [])}
    found: dict[int, Spent] = {}
    megabytes = seconds = 0.0
    before = None
    for line, costs in charged(repeat):
        if "calls" not in line:  # folders of earlier versions
            break
        asked = {call: cost for call, cost in costs.items() if call not in EVALUATING}
        megabytes += sum(float(cost.get(way, 0)) for cost in asked.values() for way in WAYS) / MEGA
        if before is None or before["t"] in starts:
            seconds += sum(float(cost.get("seconds", 0.0)) for cost in asked.values())
        else:
            calls = (line["calls"].get(call, {}) for call in EVALUATING)
            evaluating = sum(float(cost.get("seconds", 0.0)) for cost in calls)
            seconds += max(0.0, line["time"] - before["time"] - evaluating)
        found[line["t"]] = Spent(megabytes, seconds)
        before = line
    return found
