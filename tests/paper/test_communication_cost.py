"""Sec. 3.3's cost: over FedAvg, Auto-FedAvg sends (K-1)/(2 t0) more, and a few bytes of beta.

FedAvg moves 2K models a round. LearnAggWeight moves K(K-1) more, every t0 rounds.
"""

import pytest
from torch import nn

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.fedavg import FedAvg
from toy import DirectFleet, toy_problem

S = 3
T = 4
BETA_BYTES = 8


def wide(dtype):
    """32,003 parameters, 128 kB: next to that, plain values and beta are small."""
    return nn.Sequential(nn.Linear(4, 4000), nn.Tanh(), nn.Linear(4000, 3)).to(dtype)


def measure(method, K):
    problem = toy_problem(K, wide)
    transport = DirectFleet(problem)
    federation = Federation(transport)
    w0, layout = problem.initial(transport.seeds)
    for _ in method.rounds(federation, layout, T, Round(0, w0)):
        pass
    return federation.take_account(), transport, layout


def total(account):
    return sum(cost.down + cost.up for cost in account.values())


@pytest.mark.parametrize("K", [2, 3, 5, 8])
@pytest.mark.parametrize("t0", [1, 2, 4])
def test_the_extra_over_fedavg_is_k_minus_one_over_two_t0(K, t0):
    plain, _, layout = measure(FedAvg(), K)
    method = AutoFedAvg(t0=t0, S=S)
    learned, _, _ = measure(method, K)
    extra = (total(learned) - total(plain)) / total(plain)
    expected = (K - 1) / (2 * t0)
    assert method.calls(T, layout)["share_models"] * (K - 1) / (2 * T) == expected

    beta = cost_of(learned, "update_beta")
    # The plain values (round, digest, names) that requests carry beside their models.
    models = T // t0 * K * (K - 1) * layout.nbytes
    labels = cost_of(learned, "share_models") - models
    labels += abs(cost_of(learned, "local_train") - total(plain))
    labels += expected * (total(plain) - 2 * K * T * layout.nbytes)
    tolerance = (beta + labels) / total(plain)
    assert 0 < tolerance < 0.015
    assert extra == pytest.approx(expected, rel=0, abs=tolerance)


@pytest.mark.parametrize("K", [2, 3, 5, 8])
@pytest.mark.parametrize("t0", [1, 2, 4])
def test_counted_in_tensors_the_ratio_is_exact(K, t0):
    learned, transport, layout = measure(AutoFedAvg(t0=t0, S=S), K)
    calls = T // t0
    assert arrays_sent(transport, "local_train") == T * K * layout.nbytes
    assert learned["local_train"].up > T * K * layout.nbytes
    assert arrays_sent(transport, "share_models") == calls * K * (K - 1) * layout.nbytes
    assert arrays_sent(transport, "update_beta") == calls * S * K * K * BETA_BYTES
    both_ways = 2 * arrays_sent(transport, "local_train")
    assert arrays_sent(transport, "share_models") / both_ways == (K - 1) / (2 * t0)


@pytest.mark.parametrize("K", [2, 4])
def test_training_itself_costs_what_fedavg_costs(K):
    plain, _, layout = measure(FedAvg(), K)
    learned, _, _ = measure(AutoFedAvg(t0=2, S=S), K)
    assert learned["local_train"].calls == plain["local_train"].calls == T
    assert plain["local_train"].down >= K * T * layout.nbytes
    one, other = cost_of(plain, "local_train"), cost_of(learned, "local_train")
    assert one == pytest.approx(other, rel=0.001)


def test_calls_are_counted_as_algorithm_1_makes_them():
    learned, _, _ = measure(AutoFedAvg(t0=2, S=S), 3)
    calls = {call: cost.calls for call, cost in learned.items()}
    assert calls == {"local_train": 4, "share_models": 2, "update_beta": 2 * S}


@pytest.mark.parametrize("how", [{}, {"steps_per_message": 2}, {"learning": "server"}], ids=str)
@pytest.mark.parametrize("t0", [1, 3, 5])
def test_a_method_foresees_the_calls_that_it_makes(t0, how):
    method = AutoFedAvg(t0=t0, S=S, **how)
    learned, _, layout = measure(method, 2)
    foreseen = method.calls(T, layout)
    assert foreseen.pop("evaluate") == T  # the run's own, not the method's
    assert foreseen == {call: cost.calls for call, cost in learned.items()}


@pytest.mark.parametrize("how", [{}, {"learning": "server"}], ids=str)
def test_with_auto_it_foresees_at_most_so_many(how):
    """At most a fifth of the rounds make a call, and four rounds make one."""
    method = AutoFedAvg(t0="auto", S=S, **how)
    learned, _, layout = measure(method, 2)
    foreseen = method.calls(T, layout)
    assert foreseen["local_train"] == T
    assert foreseen == method.calls(T, layout)
    for call, cost in learned.items():
        assert cost.calls <= foreseen[call], call


def test_nobody_is_sent_its_own_model():
    _, transport, _ = measure(AutoFedAvg(t0=4, S=S), 3)
    for site in "ABC":
        (bag,) = transport.sent("share_models", site)
        others = [name for name in "ABC" if name != site]
        assert sorted(bag.arrays) == [f"values/{name}" for name in others]


@pytest.mark.parametrize("K", [2, 5])
@pytest.mark.parametrize("t0", [1, 2])
def test_learned_at_the_server_it_is_s_over_t0_whatever_k(K, t0):
    """Per call and client S models down and S gradients up, instead of K - 1 models down."""
    method = AutoFedAvg(t0=t0, S=S, learning="server")
    learned, transport, layout = measure(method, K)
    assert set(learned) == {"local_train", "differentiate"}
    assert learned["differentiate"].calls == T // t0 * S
    models = T // t0 * S * K * layout.nbytes
    assert arrays_sent(transport, "differentiate") == models
    both_ways = 2 * arrays_sent(transport, "local_train")
    assert 2 * models / both_ways == method.calls(T, layout)["differentiate"] / T == S / t0
    labels = cost_of(learned, "differentiate") - 2 * models
    assert 0 < labels < 0.001 * models


@pytest.mark.parametrize(("m", "messages"), [(1, 3), (2, 2), (3, 1)])
def test_several_steps_a_message_save_messages_and_the_models_stay_the_same(m, messages):
    plain, _, _ = measure(AutoFedAvg(t0=2, S=S), 3)
    learned, transport, _ = measure(AutoFedAvg(t0=2, S=S, steps_per_message=m), 3)
    assert learned["update_beta"].calls == 2 * messages
    assert arrays_sent(transport, "update_beta") == 2 * messages * 3 * 3 * BETA_BYTES
    assert learned["share_models"].down == plain["share_models"].down


@pytest.mark.parametrize("up", ["float32", "bfloat16", "difference"])
def test_blind_sums_come_up_whole_however_models_do(up):
    """Integers of 4 bytes: an encoding of FedAvg's models saves nothing on them."""
    layout, T, calls = Layout.of(nn.Linear(255, 256)), 10, 9  # not at the last sum
    method = AutoFedAvg(learning="blind", sketch=1024)
    found = method.ways_of_learning(layout, T, 4, Exchange(up=up))["blind"]
    bytes_up = {"float32": 4, "bfloat16": 2, "difference": 1 + 4 / 128}[up] * layout.size
    more = calls * 8 * 1024 + T * (4 * layout.size - bytes_up)
    assert found == pytest.approx(more / (T * (4 * layout.size + bytes_up)))
    assert "blind" not in method.ways_of_learning(layout, T, 2, Exchange(up=up))


def test_layer_wise_beta_costs_p_numbers_instead_of_one():
    _, network_wise, layout = measure(AutoFedAvg(t0=4, S=S), 3)
    _, layer_wise, _ = measure(AutoFedAvg(t0=4, S=S, weights="layer"), 3)
    P = layout.layers("module").P
    one, many = (arrays_sent(transport, "update_beta") for transport in (network_wise, layer_wise))
    assert many == P * one


def cost_of(account, call):
    return account[call].down + account[call].up


def arrays_sent(transport, verb):
    return sum(
        array.nbytes for message in transport.sent(verb) for array in message.arrays.values()
    )
