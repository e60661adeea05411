"""A site's own step on theta_j: the step of `learning = "server"`, from d_j alone."""

import pytest
import torch

from autofedavg.core.bank import Bank
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.blind import BOUNDS, BlindPlan, Lesson
from autofedavg.core.constraints import Dirichlet, Softmax
from autofedavg.core.mixture import Mixture
from autofedavg.core.sketch import Sketch
from toy import bank_of, float64, mlp

K = 4
SGD, ADAM = BetaOptimiser("sgd", 0.7), BetaOptimiser("adam", 0.3)


def bank(layers: bool):
    """Models in float64, their layout, and a mean gradient at any model."""
    w_k, layout = bank_of(lambda: mlp(torch.float64), K)
    gradient = torch.randn(
        layout.trainable, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    return w_k, layout, (layout.layers("module") if layers else None), gradient


def steps(plan: BlindPlan, theta: torch.Tensor, w_k: Bank, layout, layers, gradient):
    """Every site's step, each from its own model: theta (K, P), and the cosines."""
    u = plan.weight(theta)
    total = u.sum(dim=0)
    alpha = u / total
    w = w_k.combine(alpha if layers else alpha[:, 0], layers)
    sketch = plan.sketch_of(layout)
    lesson = Lesson(sketch.apply(gradient, 9), total)
    seen = [sketch.apply(w_k[site].values[: layout.trainable], 9) for site in w_k.sites]
    at = sketch.apply(w.values[: layout.trainable], 9)
    found = [lesson.step(plan, {"theta": theta[k], "seen": seen[k]}, sketch, at) for k in range(K)]
    return torch.stack([one.state["theta"] for one in found]), [one.cosine for one in found]


@pytest.mark.parametrize("layers", [False, True], ids=["network", "layer"])
@pytest.mark.parametrize("optimiser", [SGD, ADAM], ids=["sgd", "adam"])
def test_softmax_is_the_servers_step(layers, optimiser):
    """As `learning = "server"` with S = 1 steps on the same gradient, to 1e-12."""
    w_k, layout, kinds, gradient = bank(layers)
    P = kinds.P if kinds else 1
    theta = torch.linspace(-0.5, 0.4, K * P, dtype=torch.float64).reshape(K, P)
    plan = BlindPlan("softmax", 0.0, optimiser, "module" if layers else None)
    found, _ = steps(plan, theta, w_k, layout, kinds, gradient)
    beta = theta if layers else theta[:, 0]
    mixture = Mixture(w_k, beta, Softmax(), kinds, torch.Generator())
    average = mixture.step(gradient, optimiser.client_rate, 0.0)
    server = optimiser.start()(beta, average)
    torch.testing.assert_close(found, server.reshape(K, P), rtol=0, atol=1e-12)
    assert (found - theta).abs().max() > 1e-3


@pytest.mark.parametrize("layers", [False, True], ids=["network", "layer"])
def test_dirichlet_is_the_derivative_of_the_mode(layers):
    w_k, layout, kinds, gradient = bank(layers)
    P = kinds.P if kinds else 1
    theta = torch.linspace(2.0, 7.0, K * P, dtype=torch.float64).reshape(K, P)
    plan = BlindPlan("dirichlet", 6.0, SGD, "module" if layers else None)
    found, _ = steps(plan, theta, w_k, layout, kinds, gradient)
    beta = (theta if layers else theta[:, 0]).clone().requires_grad_()
    slopes = w_k.project(gradient, kinds)
    (Dirichlet().alpha(beta) * slopes).sum().backward()
    expected = theta - 0.7 * beta.grad.reshape(K, P)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gamma", ["softmax", "dirichlet"])
def test_the_weighted_inner_products_sum_to_nothing(gamma):
    """sum_j alpha_j d_j = 0: one false d_j among true ones shows."""
    w_k, layout, _, gradient = bank(False)
    theta = float64([[1.1], [1.5], [1.2], [1.9]])
    plan = BlindPlan(gamma, theta0=1.5, optimiser=SGD)
    u = plan.weight(theta)[:, 0]
    alpha = u / u.sum()
    w = w_k.combine(alpha).values[: layout.trainable]
    d = torch.stack([gradient @ (w_k[s].values[: layout.trainable] - w) for s in w_k.sites])
    assert abs(float(alpha @ d)) < 1e-12 * float(d.abs().max())
    if gamma == "softmax":
        found, _ = steps(plan, theta, w_k, layout, None, gradient)
        assert abs(float((found - theta).sum())) < 1e-12


@pytest.mark.parametrize("gamma", ["softmax", "dirichlet"])
@pytest.mark.parametrize("optimiser", [SGD, ADAM], ids=["sgd", "adam"])
def test_identical_models_leave_theta_alone(gamma, optimiser):
    w_k, layout, _, gradient = bank(False)
    same = Bank.gather(dict.fromkeys(w_k.sites, w_k["A"]))
    theta = torch.full((K, 1), 1.5, dtype=torch.float64)
    found, cosines = steps(BlindPlan(gamma, 1.5, optimiser), theta, same, layout, None, gradient)
    assert torch.equal(found, theta)
    assert cosines == [0.0] * K


def test_a_sketch_gives_about_the_same_step_and_cosine():
    w_k, layout, _, gradient = bank(False)
    theta = float64([[0.1], [0.2], [-0.3], [0.0]])
    whole, exact = steps(BlindPlan("softmax", 0.0, SGD), theta, w_k, layout, None, gradient)
    plan = BlindPlan("softmax", 0.0, SGD, sketch=layout.trainable - 1)
    some, cosines = steps(plan, theta, w_k, layout, None, gradient)
    assert not torch.equal(whole, some)
    assert (whole - some).abs().max() < 1.0
    assert all(abs(a - b) < 0.6 for a, b in zip(exact, cosines, strict=True))
    assert all(-1 <= cosine <= 1 for cosine in cosines)


@pytest.mark.parametrize("gamma", ["softmax", "dirichlet"])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_theta_stays_within_its_bounds(gamma, sign):
    plan = BlindPlan(gamma, 1.5, BetaOptimiser("sgd", 1e6))
    state = plan.stepped({"theta": float64([1.5])}, float64([sign]), float64([3.0]))
    assert float(state["theta"]) == BOUNDS[gamma][sign < 0]
    assert float(plan.weight(state["theta"])) > 0


def test_moments_persist_from_round_to_round():
    """Adam at a site is PyTorch's, over all rounds that the site has taken part in."""
    plan = BlindPlan("dirichlet", 6.0, ADAM)
    parameter = torch.tensor([6.0], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([parameter], 0.3, (0.5, 0.999))
    state = {"theta": float64([6.0])}
    for d in (0.5, -0.2, 0.9, 0.1):
        parameter.grad = float64([d / 15.0])
        adam.step()
        state = plan.stepped(state, float64([d]), float64([15.0]))
        assert torch.equal(state["theta"], parameter.detach())
    assert {name for name in state if name != "theta"} == {
        "moment.step",
        "moment.exp_avg",
        "moment.exp_avg_sq",
    }


@pytest.mark.parametrize("optimiser", [SGD, ADAM], ids=["sgd", "adam"])
def test_a_step_that_is_taken_back_leaves_theta_and_moments_as_they_were(optimiser):
    plan = BlindPlan("softmax", 0.0, optimiser, groups=2)
    sketch = Sketch.of(2, None, 0)
    before = plan.stepped({"theta": float64([0.5])}, float64([0.3]), float64([3.0]))
    state = {**before, "seen": float64([1.0, 0.0, 0.0, 1.0]), "t": torch.tensor(4)}
    lesson = Lesson(float64([0.7, 0.0, 0.0, 0.2]), float64([3.0]))
    after = lesson.step(plan, state, sketch, torch.zeros(4, dtype=torch.float64), t=5).state
    assert not torch.equal(after["theta"], before["theta"])
    kept = {**after, "seen": state["seen"], "t": torch.tensor(5)}
    assert plan.undone(kept, 4) == kept  # that of another round stays
    found = plan.undone(kept, 5)
    assert found.keys() == {*before, "seen", "t"}
    assert all(torch.equal(found[name], value) for name, value in before.items())


def test_a_plan_survives_a_message():
    plan = BlindPlan("softmax", 0.5, ADAM, "tensor", 64, True)
    assert BlindPlan.of(plan.note()) == plan


def test_the_sketch_of_a_network_covers_its_trainable_part():
    _, layout = bank_of(mlp, 2)
    assert BlindPlan("softmax", 0.0, SGD).sketch_of(layout) == Sketch.of(layout.trainable, None, 0)
    assert BlindPlan("softmax", 0.0, SGD, "tensor", 8).numbers(layout) == 4
