"""The gradient through a Dirichlet draw is unbiased: its mean is the gradient of the mean.

For a linear loss <g, alpha>, E[alpha] = m = beta / beta_0, so d/dbeta_j = (g_j - <g, m>) / beta_0.
"""

import pytest
import torch

from autofedavg.core.constraints import Dirichlet
from autofedavg.core.mixture import Samples
from toy import by_pytorch, float64

DRAWS = 40_000


@pytest.mark.parametrize("beta", [[6.0, 6.0, 6.0], [1.5, 4.0, 9.0], [2.0] * 8])
def test_the_mean_pathwise_gradient_is_the_gradient_of_the_mean(beta):
    g = torch.linspace(-1, 2, len(beta), dtype=torch.float64)
    columns = float64(beta).unsqueeze(1).repeat(1, DRAWS)
    samples = Samples(columns, Dirichlet(), [torch.Generator().manual_seed(21)])
    slopes = columns - samples.step(g[None, :, None].expand(1, -1, DRAWS), 1.0, 0.0)[0]
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


@pytest.mark.parametrize("keep", ["floor", "softplus"])
@pytest.mark.parametrize("shape", [(3,), (3, 4)], ids=str)
def test_every_sample_is_walked_back_as_pytorch_would(shape, keep):
    torch.manual_seed(0)
    gamma = Dirichlet(keep_above_one=keep)
    beta = 1.5 + 5 * torch.rand(shape, dtype=torch.float64)
    beta[1] = 1 + gamma.floor  # where the floor begins to hold it
    slopes = torch.randn(5, *shape, dtype=torch.float64)
    samples = Samples(beta, gamma, [torch.Generator().manual_seed(n) for n in range(5)])
    for n, stepped in enumerate(samples.step(slopes, 0.5, 0.0)):
        theta = gamma.free(beta).requires_grad_()
        alpha = by_pytorch(gamma, gamma.beta(theta), n)
        assert torch.equal(samples.alpha[n], alpha)
        (slope,) = torch.autograd.grad((alpha * slopes[n]).sum(), theta)
        torch.testing.assert_close(stepped, theta.detach() - 0.5 * slope, rtol=1e-13, atol=0)
