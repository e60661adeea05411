"""The gradient through a Dirichlet draw is unbiased: its mean is the gradient of the mean.

For a linear loss <g, alpha>, E[alpha] = m = beta / beta_0, so d/dbeta_j = (g_j - <g, m>) / beta_0.
"""

import pytest
import torch

from autofedavg.core.constraints import Dirichlet
from toy import float64, sampled

DRAWS = 40_000


@pytest.mark.parametrize("beta", [[6.0, 6.0, 6.0], [1.5, 4.0, 9.0], [2.0] * 8])
def test_the_mean_pathwise_gradient_is_the_gradient_of_the_mean(beta):
    g = torch.linspace(-1, 2, len(beta), dtype=torch.float64)
    columns = float64(beta).unsqueeze(1).repeat(1, DRAWS).requires_grad_()
    alpha = sampled(Dirichlet(), columns, 21)
    (slopes,) = torch.autograd.grad(alpha, columns, g[:, None].expand(-1, DRAWS))
    mean = Dirichlet().mean(float64(beta))
    expected = (g - (g * mean).sum()) / sum(beta)
    error = slopes.std(dim=1) / DRAWS**0.5
    assert bool(((slopes.mean(dim=1) - expected).abs() < 5 * error).all())
    assert bool((error < 0.01 * expected.abs().max()).all())


def test_at_equal_beta_the_softmax_gradient_is_beta_times_the_dirichlet_s():
    g, beta = float64([1.0, -2.0, 0.5]), torch.full((3,), 6.0, dtype=torch.float64)
    beta.requires_grad_()
    (dirichlet,) = torch.autograd.grad((g * Dirichlet().mean(beta)).sum(), beta)
    (softmax,) = torch.autograd.grad((g * torch.softmax(beta, dim=0)).sum(), beta)
    torch.testing.assert_close(softmax, 6 * dirichlet)
