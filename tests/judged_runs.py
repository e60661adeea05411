"""Runs with `t0 = "auto"`, of which every call is judged."""

from __future__ import annotations

from dataclasses import replace

from autofedavg.algorithm import Round
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods.auto_fedavg import AutoFedAvg

ONE_STEP = Training(iterations=1, optimiser="sgd", learning_rate=0.5, momentum=0.0)


def judged(transport, T, start=None, quorum=None, exchange=None, **settings):
    """Every round, its verdict, and all events."""
    federation = Federation(transport, quorum=quorum, exchange=exchange or Exchange())
    w0, layout = transport.problem.initial(Seeds(7))
    method = AutoFedAvg(**{"t0": "auto", "S": 5, **settings})
    rounds, verdicts = [], []
    for done in method.rounds(federation, layout, T, start or Round(0, w0)):
        rounds.append(replace(done, w=done.w.clone(), w_k=None))
        verdicts.append(federation.take_verdict())
    return rounds, verdicts, federation.take_events()
