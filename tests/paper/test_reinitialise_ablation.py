"""Sec. 4.2.2's ablation: beta starts anew in every LearnAggWeight call, or goes on."""

import pytest
import torch

from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import DirectFleet, rounds_of

T, T0, S = 4, 2, 2


def first_betas(transport):
    """The beta that each call's first step was sent to A with."""
    messages = transport.sent("update_beta", "A")
    return {
        message.facts["t"]: message.arrays["beta"]
        for message in messages
        if message.facts["s"] == 1
    }


@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_reinitialised_calls_all_start_from_beta0(problem, constraint):
    transport = DirectFleet(problem)
    method = AutoFedAvg(constraint=constraint, t0=T0, S=S, reinitialise=True)
    rounds = rounds_of(method, transport, T)
    beta0 = method.gamma().initial(3)
    started = first_betas(transport)
    assert sorted(started) == [2, 4]
    assert all(torch.equal(beta, beta0) for beta in started.values())
    assert not torch.equal(rounds[1].beta, beta0)


def test_the_paper_s_own_way_goes_on_from_the_last_beta(problem):
    transport = DirectFleet(problem)
    rounds = rounds_of(AutoFedAvg(t0=T0, S=S), transport, T)
    started = first_betas(transport)
    assert torch.equal(started[2], AutoFedAvg().gamma().initial(3))
    assert torch.equal(started[4], rounds[1].beta)
    assert not torch.equal(started[4], started[2])


def test_the_first_call_is_the_same_either_way(problem):
    on, off = (
        rounds_of(AutoFedAvg(t0=T0, S=S, reinitialise=flag), DirectFleet(problem), T)
        for flag in (True, False)
    )
    assert torch.equal(on[1].beta, off[1].beta)
    assert not torch.equal(on[3].beta, off[3].beta)
