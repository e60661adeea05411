"""The bytes of models that a run will move, as they travel (decision 32); all else is small."""

from __future__ import annotations

from collections import Counter
from typing import Any

from autofedavg.core.bank import Layout
from autofedavg.experiment.oracle import Fit, times_asked
from autofedavg.experiment.rows import RunConfig
from autofedavg.federation.encoding import bytes_of


def traffic(run: RunConfig, layout: Layout, sites: int, calls: Counter[str]) -> dict[str, Any]:
    """Bytes of all sites over the rounds; the final test is not one of them.

    Args:
        run: the run.
        layout: of its network.
        sites: all sites.
        calls: how many messages each call sends a client in all rounds.
    """
    T, whole, exchange = run.T, layout.nbytes, run.exchange
    up = bytes_of(layout, exchange.up)
    one = _one_model(run, sites, calls)
    # Clients' own models come down as they went up: in bfloat16 without loss.
    rounded = exchange.down == exchange.up == "bfloat16"
    down = bytes_of(layout, exchange.down) if one or rounded else whole
    kept = one and (
        exchange.down == "difference"
        or (exchange.down == "float32" and not run.method.shows_models)
    )
    training = sites * (down + up)
    shared = calls["share_models"] * (sites - 1) * down
    # A mixture goes down and a gradient, which travels as it is, comes back.
    mixtures = calls["differentiate"] * (down + whole) + calls["model_losses"] * down
    sums = run.method.sketched_bytes(layout) + (0 if kept else down)
    learning = sites * (shared + mixtures + calls["masked_gradient"] * sums) / T
    further, predictors = _scored(run, sites, calls)
    encoded = 0.0 if kept else predictors * (down if one else whole)
    validation = round(sites * (encoded + further * whole))
    first = sites * _first(run, layout, down, kept=kept)
    steps = len(Fit().asks()["differentiate"])
    steps *= times_asked("differentiate", len(run.general.ceiling), sites)
    return {
        "fedavg_a_round": training,
        "extra": learning / training,
        "bound": getattr(run.method, "t0", 1) == "auto",  # not all calls need be made
        "validation_a_round": validation,
        "first": first,
        "total": round(T * (training + learning + validation)) + first + steps * sites * 2 * whole,
        "down": exchange.down,
        "up": exchange.up,
        "ways": run.method.ways_of_learning(layout, T, sites, exchange),
    }


def _one_model(run: RunConfig, sites: int, calls: Counter[str]) -> bool:
    """Whether there is a global model a round, which all sites come to have."""
    return calls["evaluate"] >= run.T and run.method.models_validated(sites) == 1


def _scored(run: RunConfig, sites: int, calls: Counter[str]) -> tuple[float, float]:
    """Models that a site is sent to score, in a round: the method's further ones, predictors."""
    if not calls["evaluate"]:
        return 0.0, 0.0
    asked = calls["evaluate"] / run.T if run.task.has("validation") else 0.0
    every = run.general.test_every
    tests = run.T // every / run.T if every else 0.0
    predictors = run.method.models_validated(sites) * (min(asked, 1.0) + tests)
    return max(0.0, asked - 1.0), predictors


def _first(run: RunConfig, layout: Layout, down: int, *, kept: bool) -> int:
    """Bytes of a site that the first and the last round move beyond those of the others.

    Args:
        run: the run.
        layout: of its network.
        down: bytes of a model on its way down.
        kept: whether a site keeps the global model that it scores, and trains from it.
    """
    first = run.method.asks(1, run.T, layout)["local_train"]
    if any("fresh" in facts for facts in first):  # nothing comes down that a difference could be of
        unreferenced = run.exchange.up == "difference"
        return (layout.nbytes - bytes_of(layout, run.exchange.up) if unreferenced else 0) - down
    every = run.general.test_every
    scored = run.task.has("validation") or (every and run.T % every == 0)
    # The first model travels whole. Where it is kept, the last one only travels to be scored.
    return layout.nbytes - (0 if kept and scored else down)
