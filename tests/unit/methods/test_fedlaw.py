"""FedLAW on the sites' own data: learned weights, and a shrink factor that the loss asks for."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout
from autofedavg.core.constraints import Shrinking, constraint
from autofedavg.core.mixture import Mixture
from autofedavg.core.trainer import Training
from autofedavg.federation.messages import Message
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedlaw import FedLAW
from toy import (
    DirectFleet,
    PointSite,
    bank_of,
    float64,
    forge,
    lose,
    mlp,
    norm_net,
    point_problem,
    rounds_of,
    same_round,
    toy_problem,
)

STAY = Training(iterations=1, optimiser="sgd", learning_rate=1.0, momentum=0.0)  # w_k = its target


def test_no_step_is_fedavg_bit_for_bit_and_asks_for_nothing() -> None:
    problem, method = toy_problem(3, norm_net), FedLAW(S=0)
    transport = DirectFleet(problem)
    ours = rounds_of(method, transport, 2)
    theirs = rounds_of(FedAvg(), DirectFleet(problem), 2)
    assert all(map(same_round, ours, theirs))
    assert {verb for verb, _, _ in transport.asked} == {"local_train"}
    layout = Layout.of(norm_net())
    assert method.equals_fedavg(3, layout, STAY)
    assert method.learns_on is None
    assert set(method.asks(1, 2, layout)) == {"local_train", "evaluate"}
    assert not FedLAW().equals_fedavg(3, layout, STAY)
    assert FedLAW().learns_on == "validation"


def test_an_infinitesimal_step_leaves_fedavgs_model() -> None:
    """x starts at log p and g at 0."""
    problem = toy_problem(3, norm_net, dtype=torch.float64)
    (ours,) = rounds_of(FedLAW(S=1, beta_rate=1e-12), DirectFleet(problem), 1)
    (theirs,) = rounds_of(FedAvg(), DirectFleet(problem), 1)
    torch.testing.assert_close(ours.w.values, theirs.w.values, rtol=0, atol=1e-10)
    torch.testing.assert_close(ours.alpha, theirs.alpha, rtol=0, atol=1e-10)
    assert ours.learned


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_one_site_with_a_quadratic_loss_finds_its_factor(learning) -> None:
    """L = ||w - b||^2 / 2 along w = e^g w_1: e^g = <w_1, b> / ||w_1||^2, in every round."""
    w_1, b = float64([2.0, 1.0, -1.0]), float64([1.0, 1.5, 0.5])
    site = PointSite(tuple(w_1.tolist()), tuple(b.tolist()))
    transport = DirectFleet(point_problem((0.0, 0.0, 0.0), {"A": site}), STAY)
    done = rounds_of(FedLAW(S=600, learning=learning), transport, 2)
    factor = (w_1 @ b) / (w_1 @ w_1)
    for state in done:
        torch.testing.assert_close(state.w.values, factor * w_1, rtol=0, atol=1e-4)
        assert float(state.memory["shrink"]) == pytest.approx(float(factor), abs=1e-4)
        assert state.alpha.tolist() == [1.0]


def test_two_sites_find_the_best_weights_and_the_best_factor() -> None:
    """Models e_1 and e_2, both sites want b = (0.3, 0.9): u = e^g alpha = b, so e^g = 1.2."""
    targets = {"A": (1.0, 0.0), "B": (0.0, 1.0)}
    sites = {name: PointSite(w, (0.3, 0.9)) for name, w in targets.items()}
    transport = DirectFleet(point_problem((0.0, 0.0), sites), STAY)
    (done,) = rounds_of(FedLAW(S=2000), transport, 1)
    torch.testing.assert_close(done.w.values, float64([0.3, 0.9]), rtol=0, atol=1e-4)
    torch.testing.assert_close(done.alpha, float64([0.25, 0.75]), rtol=0, atol=1e-4)
    assert float(done.memory["shrink"]) == pytest.approx(1.2, abs=1e-4)


@given(st.lists(st.floats(-2, 2), min_size=4, max_size=4), st.integers(0, 2**30))
def test_a_steps_gradient_is_the_papers(beta, seed) -> None:
    """dL/dg = <grad, w>, dL/dx_k = alpha_k <grad, e^g w_k - w>, over what is trained."""
    bank, layout = bank_of(lambda: norm_net(torch.float64), 3)
    end, layers, chance = layout.trainable, layout.layers("trained"), torch.Generator()
    beta = float64(beta)
    mixture = Mixture(bank, beta, Shrinking(), layers, chance)
    gradient = torch.randn(end, dtype=torch.float64, generator=chance.manual_seed(seed))
    moved = mixture.step(gradient, 1.0, 0.0) - beta
    alpha, factor = torch.softmax(beta[:3], 0), beta[3].exp()
    w = factor * alpha @ bank.values
    torch.testing.assert_close(mixture.w.values[:end], w[:end])
    torch.testing.assert_close(mixture.w.values[end:], alpha @ bank.values[:, end:])
    in_x = alpha * ((factor * bank.values - w)[:, :end] @ gradient)
    torch.testing.assert_close(-moved, torch.cat([in_x, (gradient @ w[:end])[None]]))


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("network", [mlp, norm_net])
def test_the_server_learns_the_same_from_the_clients_gradients(network, mode) -> None:
    problem = toy_problem(3, network, dtype=torch.float64)
    runs = [
        rounds_of(FedLAW(S=4, mode=mode, learning=learning), DirectFleet(problem), 2)
        for learning in ("clients", "server")
    ]
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one.w.values, other.w.values, rtol=0, atol=1e-12)
        torch.testing.assert_close(one.memory["shrink"], other.memory["shrink"])


def test_statistics_and_frozen_layers_are_averaged_and_not_shrunk() -> None:
    def network(dtype=torch.float64):
        built = norm_net(dtype)
        built[4].requires_grad_(False)
        return built

    problem = toy_problem(3, network, dtype=torch.float64)
    transport = DirectFleet(problem)
    (done,) = rounds_of(FedLAW(S=10, beta_rate=0.1), transport, 1)
    layout, factor = Layout.of(network()), float(done.memory["shrink"])
    plain = done.alpha @ done.w_k.values
    assert abs(factor - 1) > 0.01
    assert layout.trainable < layout.size
    end = layout.trainable
    torch.testing.assert_close(done.w.values[:end], factor * plain[:end])
    torch.testing.assert_close(done.w.values[end:], plain[end:])


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_every_round_starts_afresh_so_a_run_goes_on_from_its_model_alone(learning) -> None:
    problem, method = toy_problem(3, norm_net), FedLAW(S=3, learning=learning)
    whole = rounds_of(method, DirectFleet(problem), 3)
    rest = rounds_of(method, DirectFleet(problem), 3, Round(2, whole[1].w))
    assert same_round(rest[0], whole[2])


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_those_that_trained_share_the_weights(learning) -> None:
    transport = DirectFleet(toy_problem(3), intercept=lose("B", verb="local_train", t=1))
    first, second = rounds_of(FedLAW(S=2, learning=learning), transport, 2, quorum=2)
    assert first.alpha[1] == 0
    assert float(first.alpha.sum()) == pytest.approx(1)
    factor = first.memory["shrink"].float()
    expected = factor * (first.alpha[[0, 2]].float() @ first.w_k.values)
    torch.testing.assert_close(first.w.values, expected)
    assert (second.alpha > 0).all()


@pytest.mark.parametrize(
    ("learning", "verb"), [("clients", "update_beta"), ("server", "differentiate")]
)
def test_a_site_that_misses_a_step_keeps_its_number_of_that_step(learning, verb) -> None:
    """From even sizes, with one step in all: only its x stays, and g moves."""
    sites = {name: PointSite((1.0, k), (0.5, 0.5)) for k, name in enumerate("ABC")}
    problem = point_problem((0.0, 0.0), sites)
    method = FedLAW(S=1, beta_rate=0.1, learning=learning)
    there = DirectFleet(problem, STAY)
    gone = DirectFleet(problem, STAY, intercept=lose("C", verb=verb, s=1))
    (whole,), (less,) = rounds_of(method, there, 1), rounds_of(method, gone, 1, quorum=2)
    # A goes up by 0.1, and C down unless it is gone.
    apart = [float(done.alpha[0].log() - done.alpha[2].log()) for done in (whole, less)]
    assert apart == pytest.approx([0.2, 0.1], rel=1e-6)
    assert float(less.memory["shrink"]) == pytest.approx(math.exp(-0.1), rel=1e-6)


def test_a_step_that_is_far_too_long_does_not_count() -> None:
    far = Message({"theta": float64([0.0, 0.0, 0.0, 9e5])}, {"loss": 1.0})
    sites = {name: PointSite((1.0, k), (0.5, 0.5)) for k, name in enumerate("ABC")}
    transport = DirectFleet(
        point_problem((0.0, 0.0), sites), STAY, intercept=forge("C", "update_beta", far)
    )
    (done,) = rounds_of(FedLAW(S=1), transport, 1)
    assert float(done.memory["shrink"]) == pytest.approx(math.exp(-0.01), rel=1e-6)


def test_sites_are_told_how_to_mix_by_a_constraint_of_its_own() -> None:
    gamma = Shrinking()
    assert constraint(gamma.note()) == gamma
    start = gamma.initial(3)
    assert start.tolist() == [0.0] * 4
    assert gamma.alpha(start).tolist() == gamma.mean(start).tolist()
    assert gamma.sample(start, torch.Generator()).shape == (3, 2)
    assert Layout.of(mlp()).layers("trained").segments == ((0, 51, 0),)
    assert Layout.of(norm_net()).layers("trained").segments == ((0, 63, 0), (63, 75, 1))


def test_what_is_mixed_at_the_server_is_said_to_be_open() -> None:
    assert FedLAW().cautions(3) == FedLAW(learning="server", S=0).cautions(3) == []
    assert "decision 44" in FedLAW(learning="server").cautions(3)[0]


@pytest.mark.parametrize("wrong", [{"S": -1}, {"beta_rate": 0.0}, {"clip_steps": math.inf}])
def test_impossible_settings_are_refused(wrong) -> None:
    with pytest.raises(ValidationError):
        FedLAW(**wrong)


def test_the_bank_of_one_model_has_one_weight() -> None:
    bank = Bank(("A",), float64([[1.0, 2.0]]), torch.zeros(1, 0, dtype=torch.int64))
    beta = float64([7.0, math.log(2)])
    layers = Layout.of(torch.nn.Linear(2, 1, bias=False).double()).layers("trained")
    mixture = Mixture(bank, beta, Shrinking(), layers, torch.Generator())
    assert mixture.w.values.tolist() == pytest.approx([2.0, 4.0])
