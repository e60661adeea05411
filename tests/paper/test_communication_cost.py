"""Sec. 3.3's cost: over FedAvg, Auto-FedAvg sends (K-1)/(2 t0) more, and a few bytes of beta.

FedAvg moves 2K models a round. LearnAggWeight moves K(K-1) more, every t0 rounds.
"""

import json

import pytest
from toy import DirectFleet, toy_problem

from autofedavg.algorithm import Round
from autofedavg.federation import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.fedavg import FedAvg

S = 3
T = 4
BETA_BYTES = 8


def measure(method, K):
    problem = toy_problem(K)
    fleet = DirectFleet(problem)
    federation = Federation(fleet)
    w0, layout = problem.initial(fleet.seeds)
    for _ in method.rounds(federation, layout, T, Round(0, w0)):
        pass
    return federation.take_account(), fleet, layout


def total(account):
    return sum(cost.down + cost.up for cost in account.values())


@pytest.mark.parametrize("K", [2, 3, 5, 8])
@pytest.mark.parametrize("t0", [1, 2, 4])
def test_the_extra_over_fedavg_is_k_minus_one_over_two_t0(K, t0):
    plain, _, layout = measure(FedAvg(), K)
    method = AutoFedAvg(t0=t0, S=S)
    learned, fleet, _ = measure(method, K)
    calls = T // t0
    models = calls * K * (K - 1) * layout.nbytes
    shared = learned["share_models"]
    assert arrays_sent(fleet, "share_models") == models
    labels = shared.down + shared.up - models
    beta = learned["update_beta"].down + learned["update_beta"].up
    assert arrays_sent(fleet, "update_beta") == calls * S * K * K * BETA_BYTES

    extra = (total(learned) - total(plain)) / total(plain)
    expected = (K - 1) / (2 * t0)
    # FedAvg's own notes carry a few plain values too, which the paper's count leaves out.
    plain_labels = total(plain) - 2 * K * T * layout.nbytes
    tolerance = (beta + labels + expected * plain_labels) / total(plain)
    assert method.extra_traffic(K) == expected
    assert abs(extra - expected) <= tolerance
    weights_only = models / (2 * K * T * layout.nbytes)
    assert weights_only == expected


@pytest.mark.parametrize("K", [2, 4])
def test_training_itself_costs_what_fedavg_costs(K):
    plain, _, layout = measure(FedAvg(), K)
    learned, _, _ = measure(AutoFedAvg(t0=2, S=S), K)
    assert learned["local_train"].calls == plain["local_train"].calls == T
    # FedAvg's request also says mu = 0.0.
    assert abs(learned["local_train"].down - plain["local_train"].down) <= K * T * len(', "mu": 0.0')
    assert abs(learned["local_train"].up - plain["local_train"].up) <= K * T * len(json.dumps(0.1) * 20)
    assert plain["local_train"].down >= K * T * layout.nbytes


def test_calls_are_counted_as_algorithm_1_makes_them():
    learned, _, _ = measure(AutoFedAvg(t0=2, S=S), 3)
    calls = {call: cost.calls for call, cost in learned.items()}
    assert calls == {"local_train": 4, "share_models": 2, "update_beta": 2 * S}


def test_nobody_is_sent_its_own_model():
    _, fleet, _ = measure(AutoFedAvg(t0=4, S=S), 3)
    for site in "ABC":
        (bag,) = fleet.sent("share_models", site)
        others = [name for name in "ABC" if name != site]
        assert sorted(bag.arrays) == [f"values/{name}" for name in others]


def test_layer_wise_beta_costs_p_numbers_instead_of_one():
    _, network_wise, layout = measure(AutoFedAvg(t0=4, S=S), 3)
    _, layer_wise, _ = measure(AutoFedAvg(t0=4, S=S, weights="layer"), 3)
    P = layout.layers("module").P
    one, many = (arrays_sent(fleet, "update_beta") for fleet in (network_wise, layer_wise))
    assert many == P * one


def arrays_sent(fleet, verb):
    return sum(array.nbytes for note in fleet.sent(verb) for array in note.arrays.values())
