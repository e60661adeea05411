"""gamma for any beta whatever."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from autofedavg.core.constraints import Dirichlet, Softmax, constraint
from toy import sampled

ANY = {"min_value": -500.0, "max_value": 500.0}
LEGAL = {"min_value": 1.001, "max_value": 1e4}
SHAPES = hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=6)


def tensors(**limits):
    arrays = hnp.arrays("float64", SHAPES, elements=st.floats(**limits))
    return arrays.map(torch.from_numpy)


def assert_on_simplex(alpha):
    assert alpha.dtype == torch.float64
    assert bool(torch.isfinite(alpha).all())
    assert bool((alpha >= 0).all())
    total = alpha.sum(dim=0)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)


@given(beta=tensors(**ANY))
def test_softmax_is_on_the_simplex_whatever_beta(beta):
    assert_on_simplex(Softmax().alpha(beta))


@given(beta=tensors(**LEGAL), seed=st.integers(0, 2**63 - 1))
def test_dirichlet_is_on_the_simplex_for_every_legal_beta(beta, seed):
    gamma = Dirichlet()
    for alpha in (gamma.alpha(beta), gamma.mean(beta), sampled(gamma, beta, seed)):
        assert alpha.shape == beta.shape
        assert_on_simplex(alpha)


@given(theta=tensors(**ANY))
def test_after_any_step_the_floor_leads_back_to_the_simplex(theta):
    gamma = Dirichlet()
    assert_on_simplex(gamma.alpha(gamma.beta(theta)))


@given(theta=tensors(min_value=-30.0, max_value=500.0))
def test_after_any_moderate_step_softplus_leads_back_to_the_simplex(theta):
    gamma = Dirichlet(keep_above_one="softplus")
    assert_on_simplex(gamma.alpha(gamma.beta(theta)))


@pytest.mark.parametrize("gamma", [Softmax(), Dirichlet()], ids=["softmax", "dirichlet"])
@given(data=st.data())
def test_permuting_clients_permutes_alpha(gamma, data):
    beta = data.draw(tensors(**LEGAL))
    order = torch.tensor(data.draw(st.permutations(range(len(beta)))))
    torch.testing.assert_close(gamma.alpha(beta[order]), gamma.alpha(beta)[order])


@given(beta=tensors(**ANY), shift=st.floats(-100, 100))
def test_softmax_ignores_a_common_shift(beta, shift):
    torch.testing.assert_close(Softmax().alpha(beta + shift), Softmax().alpha(beta))


GAMMAS = [Softmax(0.5), Dirichlet(3.0), Dirichlet(2.0, "softplus", 0.01)]


@pytest.mark.parametrize("gamma", GAMMAS, ids=["softmax", "floor", "softplus"])
def test_a_client_rebuilds_gamma_from_its_note(gamma):
    assert constraint(gamma.note()) == gamma


@pytest.mark.parametrize("gamma", GAMMAS, ids=["softmax", "floor", "softplus"])
def test_theta_is_never_beta_s_own_memory(gamma):
    beta = gamma.initial(3)
    gamma.free(beta).add_(1.0)
    assert torch.equal(beta, gamma.initial(3))
