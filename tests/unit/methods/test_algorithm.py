"""Algorithm 1's loop: what stays fixed, what is symmetric, and what a lost client changes."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from autofedavg.algorithm import Round, among, auto_fedavg
from autofedavg.core.bank import Bank
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Dirichlet, Softmax
from autofedavg.core.errors import FederationError
from autofedavg.core.plan import Plan
from autofedavg.core.problem import Problem
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.averaging import AveragingMethod
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.local_only import LocalOnly
from toy import (
    METRIC,
    TRAINING,
    DirectFleet,
    cross_entropy,
    float64,
    lose,
    mlp,
    norm_net,
    rounds_of,
    same_round,
    toy_problem,
    toy_site,
)

HOW = [{}, {"steps_per_message": 2}, {"steps_per_message": 5}, {"learning": "server"}]


@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
@pytest.mark.parametrize("network", [mlp, norm_net])
@pytest.mark.parametrize("K", [2, 3])
def test_t0_beyond_t_is_fedavg_with_even_weights_to_the_bit(K, network, constraint):
    problem = toy_problem(K, network)
    never = rounds_of(AutoFedAvg(constraint=constraint, t0=4), DirectFleet(problem), 3)
    even = rounds_of(FedAvg(weights="even"), DirectFleet(problem), 3)
    for one, other in zip(never, even, strict=True):
        assert same_round(replace(one, beta=None), other)


@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_t0_beyond_t_is_an_even_average_layer_wise_too(problem, constraint):
    method = AutoFedAvg(constraint=constraint, weights="layer", t0=4)
    never = rounds_of(method, DirectFleet(problem), 3)
    even = rounds_of(FedAvg(weights="even"), DirectFleet(problem), 3)
    torch.testing.assert_close(never[-1].w.values, even[-1].w.values)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("weights", ["network", "layer"])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_permuting_clients_permutes_what_is_learned(order, weights, how):
    """The same three data sets under permuted names; nothing random is left."""

    def run(kinds):
        sites = {
            name: toy_site(name, k, dtype=torch.float64, full=True)
            for name, k in zip("ABC", kinds, strict=True)
        }
        problem = Problem(lambda: mlp(torch.float64), cross_entropy, sites, METRIC)
        method = AutoFedAvg(constraint="softmax", weights=weights, S=5, **how)
        return rounds_of(method, DirectFleet(problem), 2)[-1]

    straight, permuted = run(range(3)), run(order)
    rows = torch.tensor(order)
    assert (straight.beta - straight.beta[[1, 2, 0]]).abs().max() > 1e-3
    torch.testing.assert_close(permuted.beta, straight.beta[rows], rtol=0, atol=1e-9)
    torch.testing.assert_close(permuted.alpha, straight.alpha[rows], rtol=0, atol=1e-9)
    torch.testing.assert_close(permuted.w.values, straight.w.values, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "method",
    [
        AutoFedAvg(t0=2, S=3),
        AutoFedAvg(t0=1, S=2, weights="layer", constraint="softmax"),
        AutoFedAvg(t0=2, S=3, keep_above_one="softplus"),
        AutoFedAvg(t0=2, S=3, steps_per_message=2),
        AutoFedAvg(t0=2, S=3, learning="server", mode="train"),
        FedAvg(),
    ],
    ids=["dirichlet", "layer-wise", "softplus", "two steps", "server", "fedavg"],
)
def test_going_on_from_a_round_is_the_same_as_never_having_stopped(method):
    problem = toy_problem(3, norm_net)
    whole = rounds_of(method, DirectFleet(problem), 5)
    stop = whole[2]
    start = Round(stop.t, stop.w, stop.beta, stop.alpha)
    rest = rounds_of(method, DirectFleet(problem), 5, start)
    assert [r.t for r in rest] == [4, 5]
    assert all(map(same_round, whole[3:], rest))


def test_nothing_is_left_to_do_after_the_last_round(problem):
    last = rounds_of(AutoFedAvg(), DirectFleet(problem), 1)[-1]
    assert rounds_of(AutoFedAvg(), DirectFleet(problem), 1, last) == []


def test_rounds_are_made_one_at_a_time(problem):
    transport = DirectFleet(problem)
    w0, _ = problem.initial(transport.seeds)
    plan = Plan(5, 1, 1, Softmax(), BetaOptimiser("sgd", 0.1))
    rounds = auto_fedavg(Federation(transport), plan, Round(0, w0))
    assert not transport.asked
    assert next(rounds).t == 1
    assert len(transport.sent("local_train")) == 3


def test_a_round_says_every_client_s_loss(problem):
    for method in (AutoFedAvg(S=1), FedAvg()):
        (only,) = rounds_of(method, DirectFleet(problem), 1)
        assert list(only.losses) == ["A", "B", "C"]


# --- with clients missing -------------------------------------------------------------------------


def test_alpha_of_those_that_answered_sums_to_one_again(federation):
    alpha = float64([[0.5, 0.1], [0.3, 0.7], [0.2, 0.2]])
    bank = Bank(("A", "C"), torch.zeros(2, 1), torch.zeros(2, 0, dtype=torch.int64))
    expected = float64([[5 / 7, 1 / 3], [2 / 7, 2 / 3]])
    torch.testing.assert_close(among(alpha, federation, bank), expected)


def test_with_everybody_there_alpha_is_used_as_it_is(federation):
    alpha = float64([0.1, 0.2, 0.7000000000000001])
    bank = Bank(("A", "B", "C"), torch.zeros(3, 1), torch.zeros(3, 0, dtype=torch.int64))
    assert torch.equal(among(alpha, federation, bank), alpha)


def test_fedavg_goes_on_without_a_lost_client(problem):
    transport = DirectFleet(problem, intercept=lose("B", verb="local_train", t=2))
    first, second, third = rounds_of(FedAvg(), transport, 3, quorum=2)
    assert second.w_k.sites == ("A", "C")
    by_hand = (8 * second.w_k.values[0] + 16 * second.w_k.values[1]) / 24
    torch.testing.assert_close(second.w.values, by_hand)
    assert third.w_k.sites == first.w_k.sites == ("A", "B", "C")
    assert torch.equal(second.alpha, float64([8, 12, 16]) / 36)


@pytest.mark.parametrize("method", [FedAvg(), AutoFedAvg(S=2)], ids=["fedavg", "auto-fedavg"])
def test_without_a_quorum_a_lost_client_ends_the_run(problem, method):
    transport = DirectFleet(problem, intercept=lose("B", verb="local_train", t=2))
    with pytest.raises(FederationError, match="client B, local_train, round 2: did not answer"):
        rounds_of(method, transport, 3)


@pytest.mark.parametrize("weights", ["network", "layer"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("how", [{}, {"steps_per_message": 2}, {"learning": "server"}], ids=str)
def test_an_absent_client_s_beta_is_untouched_and_comes_back_with_it(
    problem, weights, optimiser, how
):
    transport = DirectFleet(problem, intercept=lose("B", verb="local_train", t=2))
    method = AutoFedAvg(weights=weights, S=3, beta_optimiser=optimiser, beta_rate=0.5, **how)
    first, second, third = rounds_of(method, transport, 3, quorum=2)
    assert torch.equal(second.beta[1], first.beta[1])
    assert not torch.equal(second.beta[0], first.beta[0])
    assert not torch.equal(second.beta[2], first.beta[2])
    assert torch.equal(second.alpha, method.gamma().alpha(second.beta))
    assert not torch.equal(third.beta[1], second.beta[1])
    assert all(len(message.arrays["beta"]) == 2 for message in sent_in(transport, "update_beta", 2))
    verb = "differentiate" if "learning" in how else "update_beta"
    messages = 2 if "steps_per_message" in how else 3
    assert len(sent_in(transport, verb, 2)) == 2 * messages


def sent_in(transport, verb, t):
    return [message for message in transport.sent(verb) if message.facts["t"] == t]


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_client_that_missed_a_step_leaves_its_own_entry_alone(problem, optimiser):
    transport = DirectFleet(problem, intercept=lose("B", verb="update_beta", s=2))
    method = AutoFedAvg(constraint="softmax", S=3, beta_optimiser=optimiser)
    rounds_of(method, transport, 1, quorum=2)
    before, after = (message.arrays["beta"] for message in transport.sent("update_beta", "A")[1:])
    assert after[1] == before[1]
    assert after[0] != before[0]
    assert after[2] != before[2]


@pytest.mark.parametrize("weights", ["network", "layer"])
@pytest.mark.parametrize(
    ("verb", "how"),
    [("update_beta", {"steps_per_message": 2}), ("differentiate", {"learning": "server"})],
    ids=["two steps", "server"],
)
def test_a_client_that_missed_a_whole_call_leaves_its_entry_alone(problem, weights, verb, how):
    transport = DirectFleet(problem, intercept=lose("B", verb=verb))
    (only,) = rounds_of(AutoFedAvg(weights=weights, S=3, **how), transport, 1, quorum=2)
    assert bool((only.beta[1] == 6.0).all())
    assert bool((only.beta[[0, 2]] != 6.0).all())


def test_a_client_that_missed_one_message_of_several_comes_back_for_the_next(problem):
    transport = DirectFleet(problem, intercept=lose("B", verb="update_beta", s=1))
    method = AutoFedAvg(constraint="softmax", S=4, steps_per_message=2)
    (only,) = rounds_of(method, transport, 1, quorum=2)
    first, again, second = transport.sent("update_beta", "B")
    assert first is again
    assert second.arrays["beta"][1] == 0.0
    assert second.arrays["beta"][0] != 0.0
    assert only.beta[1] != 0.0


def test_beta_is_averaged_over_those_that_answered(problem):
    """Plain averaging, one step: the others' entries are the mean of the two that came back."""
    answers = {}

    class Overheard(DirectFleet):
        def ask(self, verb, notes, within):
            found = super().ask(verb, notes, within)
            if verb == "update_beta":
                answers.update(found)
            return found

    method = AutoFedAvg(constraint="softmax", S=1, beta_optimiser="sgd", beta_rate=0.5)
    transport = Overheard(problem, intercept=lose("B", verb="update_beta"))
    (only,) = rounds_of(method, transport, 1, quorum=2)
    mean = (answers["A"].arrays["theta"] + answers["C"].arrays["theta"]) / 2
    assert torch.equal(only.beta[[0, 2]], mean[[0, 2]])
    assert only.beta[1] == 0.0


def test_local_only_goes_on_without_a_lost_client(problem):
    transport = DirectFleet(problem, intercept=lose("B", verb="local_train", t=2))
    rounds = rounds_of(LocalOnly(), transport, 3, quorum=2)
    whole = rounds_of(LocalOnly(), DirectFleet(problem), 3)
    assert rounds[1].w_k.sites == ("A", "C")
    for name in ("A", "C"):
        assert torch.equal(rounds[2].w_k[name].values, whole[2].w_k[name].values)


def test_a_beta_that_left_the_legal_range_is_brought_back_after_averaging(problem):
    transport = DirectFleet(problem)
    w0, _ = problem.initial(transport.seeds)
    plan = Plan(1, 1, 4, Dirichlet(), BetaOptimiser("sgd", 1e4))
    (only,) = auto_fedavg(Federation(transport), plan, Round(0, w0))
    assert bool((only.beta >= 1.001).all())
    assert bool((only.beta == 1.001).any())
    assert only.alpha.sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("method", [AutoFedAvg(S=2), FedAvg()], ids=["auto-fedavg", "fedavg"])
def test_a_run_in_bf16_keeps_models_in_float32_and_beta_in_float64(method):
    problem = toy_problem(3, norm_net)
    rough = DirectFleet(problem, TRAINING.model_copy(update={"precision": "bf16"}))
    last = rounds_of(method, rough, 2)[-1]
    assert last.w.values.dtype == torch.float32
    assert last.alpha.dtype == torch.float64
    assert bool(torch.isfinite(last.w.values).all())
    exact = rounds_of(method, DirectFleet(problem), 2)[-1]
    assert not torch.equal(last.w.values, exact.w.values)
    torch.testing.assert_close(last.w.values, exact.w.values, rtol=0, atol=0.1)


def test_fixed_weights_need_not_be_even(problem):
    transport = DirectFleet(problem)
    w0, layout = problem.initial(transport.seeds)

    class Only(AveragingMethod):
        def fixed_weights(self, federation, t):
            return float64([1.0, 0.0, 0.0])

    (only,) = Only().rounds(Federation(transport), layout, 1, Round(0, w0))
    assert torch.equal(only.w.values, only.w_k["A"].values)
