"""Runs of blind learning over any transport, validated as runs are."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import torch

from autofedavg.algorithm import Round
from autofedavg.core.seeds import Seeds
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import METRIC

T = 4


def federation_of(transport, **how) -> Federation:
    return Federation(transport, metric=METRIC, seeds=Seeds(7), **how)


def blind_run(
    transport, problem, *, federation=None, after=None, rounds=T, stop=None, **settings
) -> list[Round]:
    """The rounds of a blind run, or the first `stop` of them."""
    federation = federation or federation_of(transport)
    w0, layout = problem.initial(Seeds(7))
    method = AutoFedAvg(learning="blind", **settings)
    found = []
    states = method.rounds(federation, layout, rounds, after or Round(0, w0))
    for state in islice(states, stop):
        federation.evaluate(state.w, "validation", METRIC)
        found.append(replace(state, w=state.w.clone()))
    return found


def same_rounds(one: list[Round], other: list[Round]) -> bool:
    """Whether two blind runs have the same models and the same sums of weights."""
    return all(
        torch.equal(a.w.values, b.w.values)
        and torch.equal(a.w.counters, b.w.counters)
        and torch.equal(a.memory["U"], b.memory["U"])
        for a, b in zip(one, other, strict=True)
    )
