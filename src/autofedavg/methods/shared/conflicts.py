"""Settings of learned weights that cannot be used together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofedavg.core.errors import ConfigError


def conflict(given: Mapping[str, Any]) -> str:
    """What does not fit together, and what to do; nothing where all does."""
    S, several, t0 = given["S"], given["steps_per_message"], given["t0"]
    if several > S:
        return (
            f"steps_per_message = {several} is more than S = {S}, all steps of a call; use at most "
            "S"
        )
    if several > 1 and given["learning"] == "server":
        return (
            "steps_per_message > 1 needs learning = 'clients': the server needs a gradient for "
            "every step"
        )
    if given["when_idle"] == "sizes" and t0 != "auto":
        return f"when_idle = 'sizes' needs t0 = 'auto': with t0 = {t0} no call is judged"
    if given["smoothing"] and given["weights"] == "network":
        return "smoothing needs weights = 'layer': one alpha has no neighbours"
    return ""


def refuse_idle(given: Mapping[str, Any]) -> None:
    """Refuses a setting of a study that would do nothing; older run folders may have one.

    Raises:
        ConfigError: there is one.
    """
    softmax, why = given["constraint"] == "softmax", ""
    if given["layer"] != "module" and given["weights"] == "network":
        why = f"layer = {given['layer']!r} needs weights = 'layer'"
    elif given["keep_above_one"] != "floor" and softmax:
        why = (
            f"keep_above_one = {given['keep_above_one']!r} needs constraint = 'dirichlet': the "
            "softmax's beta has no bound"
        )
    elif given["beta0"] != 0 and softmax and given["learning"] != "blind":
        why = (
            f"beta0 = {given['beta0']:g} does nothing with constraint = 'softmax', where only "
            "differences of beta count"
        )
    if why:
        raise ConfigError(why, where="method", remedy="leave it out")


def too_few_calls(given: Mapping[str, Any], calls: int, T: int) -> str:
    """What so few calls of LearnAggWeight leave without effect; nothing if they are enough."""
    if calls > 1 or (calls and not given["reinitialise"]):
        return ""
    rounds = "1 round" if T == 1 else f"{T} rounds"
    if calls:
        return f"with t0 = {given['t0']} there is one call in {rounds}: reinitialise does nothing"
    stay = "1/K" if given["start"] == "even" else "n_k/n, FedAvg's"
    return f"with t0 = {given['t0']} no weights are learned in {rounds}: they stay {stay}"
