"""The port's requests: the plain values that each may carry, and which of them carry models.

A client refuses all other values: ignoring one would answer another question than the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofedavg.core.errors import TrainingError, did_you_mean

_MODEL = frozenset({"form", "sent"})  # how a model travels
_STEP = frozenset({"t", "s", "data", "mode"})  # a step of LearnAggWeight

KNOWN: Mapping[str, frozenset[str]] = {
    "local_train": _MODEL | {"t", "T", "mu", "fresh", "rate", "passes", "weight_decay", "up"},
    "share_models": frozenset({"t", "sites", "digest", "digests", "sent"}),
    "update_beta": _STEP | {"digest", "gamma", "layers", "rate", "smoothing", "steps", "optimiser"},
    "differentiate": _STEP | {"sent"},
    "evaluate": _MODEL | {"t", "split", "sites"},
    "validate_local": frozenset({"t", "metric", "digest", "form"}),
    "class_counts": frozenset({"t"}),
}
# The port's own values say how models travel, and which; all others are the method's, or the run's.
PORT_VALUES = _MODEL | {"t", "up", "sites", "digest", "digests"}
# A model goes with the request, with its reply, or with both. All other requests are small.
WITH_MODELS = frozenset(
    {"differentiate", "evaluate", "local_train", "share_models", "validate_local"}
)


def refuse_unknown(site: str, verb: str, facts: Mapping[str, Any]) -> None:
    """Refuses a request, or a value of one, that this client does not know.

    Raises:
        TrainingError: it names the request, or the value.
    """
    known = KNOWN.get(verb)
    if known is None:
        raise TrainingError(f"unknown request {verb!r}", where=f"client {site}")
    unknown = sorted(facts.keys() - known)
    if unknown:
        raise TrainingError(
            f"unknown value {unknown[0]!r} for {verb}",
            where=f"client {site}",
            remedy=f"{did_you_mean(unknown[0], known)} Have the same version at server and sites",
        )
