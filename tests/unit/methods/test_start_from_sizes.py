"""`start = "sizes"`: learned weights begin as FedAvg's, in every way of learning (decision 62)."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layers
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.blind import BlindPlan
from autofedavg.core.constraints import Dirichlet, Softmax
from autofedavg.core.plan import Plan
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Site
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.fedavg import FedAvg
from blind_runs import federation_of
from toy import DirectFleet, norm_net, toy_problem

NAMES = ("A", "B", "C", "D")
VARIANTS = [
    {"constraint": constraint, "weights": weights}
    for constraint in ("dirichlet", "softmax")
    for weights in ("network", "layer")
]


def uneven():
    """Four sites of 8 to 20 training cases, and n_k/n."""
    problem = toy_problem(4, norm_net)
    n_k = [problem.sites[name].cases()["train"] for name in NAMES]
    return problem, torch.tensor(n_k, dtype=torch.float64) / sum(n_k)


def rounds_of(method, problem, T=1):
    fleet = DirectFleet(problem)
    w0, layout = problem.initial(Seeds(7))
    found = method.rounds(federation_of(fleet), layout, T, Round(0, w0))
    return [replace(state, w=state.w.clone()) for state in found], fleet


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("learning", ["clients", "server"])
def test_without_a_call_it_is_fedavg(learning, settings):
    problem, shares = uneven()
    (first,), _ = rounds_of(AutoFedAvg(learning=learning, t0=9, start="sizes", **settings), problem)
    (fedavg,), _ = rounds_of(FedAvg(), problem)
    alpha = first.alpha if first.alpha.dim() == 1 else first.alpha[:, 0]
    torch.testing.assert_close(alpha, shares)
    torch.testing.assert_close(first.w.values, fedavg.w.values, rtol=0, atol=1e-7)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_the_first_blind_round_is_fedavg(settings):
    problem, shares = uneven()
    method = AutoFedAvg(learning="blind", start="sizes", show_weights=True, **settings)
    (first,), _ = rounds_of(method, problem)
    (fedavg,), _ = rounds_of(FedAvg(), problem)
    alpha = first.alpha if first.alpha.dim() == 1 else first.alpha[:, 0]
    torch.testing.assert_close(alpha, shares, rtol=0, atol=1e-9)
    torch.testing.assert_close(first.w.values, fedavg.w.values, rtol=0, atol=1e-6)


def test_blind_sites_learn_the_sum_of_all_cases_and_no_other_number():
    problem, _ = uneven()
    cases = sum(problem.sites[name].cases()["train"] for name in NAMES)
    _, fleet = rounds_of(AutoFedAvg(learning="blind", start="sizes"), problem)
    assert {m.facts["sum"]["cases"] for m in fleet.sent("local_train")} == {cases}
    _, fleet = rounds_of(AutoFedAvg(learning="blind"), problem)
    assert {m.facts["sum"]["cases"] for m in fleet.sent("local_train")} == {0}


@pytest.mark.parametrize("gamma", ["dirichlet", "softmax"])
def test_a_blind_step_from_sizes_is_along_the_derivative(gamma):
    """d alpha / d theta, by autograd, times the slopes of the loss by alpha."""
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    plan = BlindPlan(gamma, 0.0, BetaOptimiser("sgd", 1.0), sizes=True)
    theta = torch.tensor([1.2, 1.9, 1.4, 1.1], dtype=torch.float64, requires_grad=True)
    u = torch.stack([plan.weight(theta[k], float(shares[k])) for k in range(4)])
    slopes = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64)  # <g, w_k>
    alpha = u / u.sum()
    (alpha * slopes).sum().backward()
    d = (slopes - alpha @ slopes).detach()
    found = [
        plan.slope(theta[k].detach(), d[k], u.sum().detach(), float(shares[k])) for k in range(4)
    ]
    torch.testing.assert_close(torch.stack(found), theta.grad)


def test_a_blind_softmax_step_from_sizes_is_the_servers():
    """As `learning = "server"` with S = 1 from n_k/n, on the same mini-batches."""
    problem = toy_problem(4, norm_net, dtype=torch.float64)
    how = {"constraint": "softmax", "beta_optimiser": "sgd", "beta_rate": 20.0, "start": "sizes"}
    blind, _ = rounds_of(
        AutoFedAvg(learning="blind", batches=1, sketch=0, show_weights=True, **how), problem, 2
    )
    (server,), _ = rounds_of(AutoFedAvg(learning="server", S=1, **how), problem)
    torch.testing.assert_close(blind[1].alpha, server.alpha, rtol=0, atol=1e-6)
    assert (blind[1].alpha - blind[0].alpha).abs().max() > 1e-2


@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("gamma", [Softmax(0.5), Dirichlet(), Dirichlet(6.0, "softplus")], ids=str)
@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=6))
def test_weights_begin_at_n_k_over_n_whatever_the_sizes(gamma, layers, n_k):
    sites = [Site(str(k), {"train": n}) for k, n in enumerate(n_k)]
    kinds = Layers(tuple("ab"), ((0, 1, 0), (1, 2, 1))) if layers else None
    plan = Plan(1, 1, 1, gamma, BetaOptimiser("sgd", 1.0), kinds, from_sizes=True)
    beta = plan.initial(sites)
    even = replace(plan, from_sizes=False).initial(sites)
    assert beta.shape == even.shape == ((len(n_k), 2) if layers else (len(n_k),))
    alpha = gamma.alpha(beta) if not layers else gamma.alpha(beta)[:, 1]
    expected = torch.tensor(n_k, dtype=torch.float64) / sum(n_k)
    torch.testing.assert_close(alpha, expected, rtol=0, atol=1e-3)  # the Dirichlet's floor
    torch.testing.assert_close(beta.mean(dim=0), even.mean(dim=0), rtol=0, atol=1e-2)
