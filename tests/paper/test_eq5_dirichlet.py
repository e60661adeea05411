"""Eq. 5: alpha ~ Dir(beta) while the weights are learned."""

import pytest
import torch

from autofedavg.constraints import Dirichlet
from autofedavg.seeds import global_seed
from toy import float64

BETA = [2.0, 3.0, 7.0]
MANY = 40_000


@pytest.fixture(scope="module")
def draws():
    """One draw per column: (3, MANY)."""
    beta = float64(BETA).unsqueeze(1).expand(3, MANY)
    return Dirichlet().sample(beta, seed=11)


def test_draws_lie_on_the_simplex(draws):
    assert bool((draws > 0).all())
    torch.testing.assert_close(draws.sum(dim=0), torch.ones(MANY, dtype=torch.float64))


def test_mean_is_beta_over_its_sum(draws):
    mean = float64(BETA) / sum(BETA)
    # Five standard errors of the mean of MANY draws.
    torch.testing.assert_close(draws.mean(dim=1), mean, rtol=0, atol=5 * 0.14 / MANY**0.5)
    torch.testing.assert_close(Dirichlet().mean(float64(BETA)), mean)


def test_covariance_is_the_dirichlet_s(draws):
    total = sum(BETA)
    mean = float64(BETA) / total
    expected = (torch.diag(mean) - torch.outer(mean, mean)) / (total + 1)
    torch.testing.assert_close(torch.cov(draws), expected, rtol=0, atol=5e-4)


def test_the_draw_is_the_seed_s():
    beta = float64(BETA)
    first = Dirichlet().sample(beta, seed=5)
    assert torch.equal(Dirichlet().sample(beta, seed=5), first)
    assert not torch.equal(Dirichlet().sample(beta, seed=6), first)


def test_every_layer_has_a_draw_of_its_own():
    alpha = Dirichlet().sample(float64([[6.0, 6.0], [6.0, 6.0]]), seed=5)
    assert not torch.equal(alpha[:, 0], alpha[:, 1])


def test_drawing_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    Dirichlet().sample(float64(BETA), seed=5)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_draw_does_not_depend_on_the_global_generator():
    first = Dirichlet().sample(float64(BETA), seed=5)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(Dirichlet().sample(float64(BETA), seed=5), first)


@pytest.mark.parametrize("shape", [(3,), (3, 4)], ids=str)
def test_a_batch_of_samples_is_what_pytorch_draws_with_each_seed(shape) -> None:
    torch.manual_seed(0)
    betas = (1.5 + 5 * torch.rand(5, *shape, dtype=torch.float64)).requires_grad_()
    weights = torch.randn(5, *shape, dtype=torch.float64)
    seeds = [3, 2**62, 7, 3, 0]
    ours = Dirichlet().samples(betas, seeds)
    (slopes,) = torch.autograd.grad((ours * weights).sum(), betas)
    for n, seed in enumerate(seeds):
        row = betas[n].detach().clone().requires_grad_()
        with global_seed(seed):
            alpha = torch.distributions.Dirichlet(row.movedim(0, -1)).rsample().movedim(-1, 0)
        assert torch.equal(ours[n], alpha)
        (slope,) = torch.autograd.grad((alpha * weights[n]).sum(), row)
        assert torch.equal(slopes[n], slope)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_nothing_is_drawn_from_numbers_that_are_none(wrong) -> None:
    with pytest.raises(ValueError, match="beta is not finite"):
        Dirichlet().sample(float64([2.0, wrong, 3.0]), seed=1)
