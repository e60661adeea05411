"""Eq. 3: alpha = gamma(beta) lies on the simplex, for one alpha a client or one a layer."""

import pytest
import torch

from autofedavg.core.constraints import Dirichlet, Softmax
from toy import float64, sampled

GAMMAS = [Softmax(), Dirichlet(), Dirichlet(keep_above_one="softplus")]


@pytest.mark.parametrize("gamma", GAMMAS, ids=["softmax", "floor", "softplus"])
@pytest.mark.parametrize("P", [None, 4])
@pytest.mark.parametrize("K", [1, 2, 3, 16])
def test_beta0_gives_even_weights(gamma, K, P):
    alpha = gamma.alpha(gamma.initial(K, P))
    assert alpha.shape == ((K,) if P is None else (K, P))
    assert alpha.dtype == torch.float64
    assert torch.equal(alpha, torch.full_like(alpha, 1 / K))


@pytest.mark.parametrize("gamma", GAMMAS, ids=["softmax", "floor", "softplus"])
def test_alpha_sums_to_one_over_clients_in_every_layer(gamma):
    beta = float64([[2.0, 9.0], [3.5, 1.5], [6.0, 4.0]])
    for alpha in (gamma.alpha(beta), sampled(gamma, beta, 3), gamma.mean(beta)):
        assert bool((alpha >= 0).all())
        torch.testing.assert_close(alpha.sum(dim=0), float64([1.0, 1.0]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("gamma", GAMMAS, ids=["softmax", "floor", "softplus"])
def test_more_beta_is_more_weight(gamma):
    even, raised = float64([4.0, 4.0, 4.0]), float64([4.0, 5.0, 4.0])
    assert gamma.alpha(raised)[1] > gamma.alpha(even)[1]
    assert gamma.alpha(raised)[0] < gamma.alpha(even)[0]
