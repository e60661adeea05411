"""Eq. 6: aggregation uses the mode, alpha_k = (beta_k - 1) / (sum_i beta_i - K)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Dirichlet as Density

from autofedavg.core.constraints import Dirichlet
from autofedavg.core.errors import ConfigError
from toy import float64

KINDS = ["floor", "softplus"]


def test_formula():
    alpha = Dirichlet().alpha(float64([2.0, 3.0, 4.0]))
    torch.testing.assert_close(alpha, float64([1 / 6, 2 / 6, 3 / 6]))


def test_layer_wise_is_the_formula_in_every_column():
    beta = float64([[2.0, 5.0], [3.0, 1.5], [4.0, 2.0]])
    alpha = Dirichlet().alpha(beta)
    for p in range(2):
        torch.testing.assert_close(alpha[:, p], Dirichlet().alpha(beta[:, p]))


@pytest.mark.parametrize("away", [[1e-3, -1e-3, 0.0], [0.0, 1e-3, -1e-3], [-2e-3, 1e-3, 1e-3]])
def test_no_point_nearby_is_more_likely(away):
    beta = float64([2.0, 3.0, 4.0])
    mode = Dirichlet().alpha(beta)
    density = Density(beta)
    for sign in (1, -1):
        assert density.log_prob(mode + sign * float64(away)) < density.log_prob(mode)


def test_the_formula_alone_goes_negative_below_one():
    alpha = Dirichlet().alpha(float64([0.5, 3.0, 4.0]))
    assert alpha[0].item() == pytest.approx(-0.5 / 4.5)


@pytest.mark.parametrize("beta0", [1.0, 1.001, 0.5, -3.0, float("nan")])
def test_a_beta0_without_a_mode_is_refused(beta0):
    wrong = r"^beta0: beta0 = .* leaves the Dirichlet's mode \(Eq. 6\) undefined; use a value above"
    with pytest.raises(ConfigError, match=wrong):
        Dirichlet(beta0=beta0)


def test_the_floor_lifts_only_what_lies_below_it():
    assert Dirichlet().beta(float64([-4.0, 1.0, 1.5])).tolist() == [1.001, 1.001, 1.5]


def test_beta_at_the_floor_can_still_be_learned():
    theta = float64([1.001, 6.0]).requires_grad_()
    (slope,) = torch.autograd.grad(Dirichlet().beta(theta).sum(), theta)
    assert slope.tolist() == [1.0, 1.0]


def test_softplus_is_the_floor_plus_log_one_plus_exp():
    beta = Dirichlet(keep_above_one="softplus").beta(float64([0.0, 2.0]))
    torch.testing.assert_close(beta, 1.001 + torch.log1p(torch.exp(float64([0.0, 2.0]))))


@pytest.mark.parametrize("kind", KINDS)
@given(theta=st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=6))
def test_every_step_leaves_beta_where_the_mode_exists(kind, theta):
    gamma = Dirichlet(keep_above_one=kind)
    beta = gamma.beta(float64(theta))
    alpha = gamma.alpha(beta)
    assert bool((beta > 1).all())
    assert bool((alpha > 0).all())
    assert alpha.sum().item() == pytest.approx(1.0)
    assert bool(torch.isfinite(gamma.free(beta)).all())


@pytest.mark.parametrize("kind", KINDS)
@given(beta=st.lists(st.floats(1.01, 1e3), min_size=1, max_size=6))
def test_theta_and_beta_are_two_names_of_one_thing(kind, beta):
    gamma = Dirichlet(keep_above_one=kind)
    torch.testing.assert_close(gamma.beta(gamma.free(float64(beta))), float64(beta))
