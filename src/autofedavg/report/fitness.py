"""Whether what a run folder holds can be what a run wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autofedavg.core.scores import Scores
from autofedavg.experiment.folder_schema import HUGE


def refuse_unfit(
    cases: Mapping[str, Any],
    config: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    scores: Scores,
) -> None:
    """What no run writes, and what tables and figures could not be made from.

    Raises:
        ValueError, LookupError: with what is wrong.
    """
    _ = config["method"]["name"], config["task"]["name"]
    for line in rounds:
        alpha = line["alpha"]
        if alpha is not None and len(alpha) != len(cases):
            raise ValueError(f"round {line['t']} has {len(alpha)} weights, not {len(cases)}")
        numbers = [line.get(of, {}).get("mean") for of in ("validation", "test")]
        numbers += line.get("loss", {}).values()
        numbers += [x for losses in line.get("learning_loss", {}).values() for x in losses]
        numbers += [a for per_site in alpha or [] for a in _listed(per_site)]
        for event in line.get("events") or []:
            _ = event["site"], event["what"]
        if not all(number is None or -HUGE <= number <= HUGE for number in numbers):
            raise ValueError(f"round {line['t']} has a number that is not finite, or too large")
    for tested, _ in scores.columns():
        if tested.site not in cases:
            raise ValueError(f"scores.csv names {tested.site}, which is no site of this run")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
