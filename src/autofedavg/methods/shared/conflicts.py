"""Settings of learned weights that cannot be used together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
    if given["layer"] != "module" and given["weights"] == "network":
        return f"layer = {given['layer']!r} needs weights = 'layer'; leave it out"
    if given["keep_above_one"] != "floor" and given["constraint"] == "softmax":
        return (
            f"keep_above_one = {given['keep_above_one']!r} needs constraint = 'dirichlet': the "
            "softmax's beta has no bound; leave it out"
        )
    return ""
