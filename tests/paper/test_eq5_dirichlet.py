"""Eq. 5: alpha ~ Dir(beta) while the weights are learned."""

import pytest
import torch

from autofedavg.core.constraints import Dirichlet
from toy import by_pytorch, float64, sampled

BETA = [2.0, 3.0, 7.0]
MANY = 40_000


@pytest.fixture(scope="module")
def draws():
    """One draw per column: (3, MANY)."""
    beta = float64(BETA).unsqueeze(1).expand(3, MANY)
    return sampled(Dirichlet(), beta, 11)


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
    first = sampled(Dirichlet(), beta, 5)
    assert torch.equal(sampled(Dirichlet(), beta, 5), first)
    assert not torch.equal(sampled(Dirichlet(), beta, 6), first)


def test_every_layer_has_a_draw_of_its_own():
    alpha = sampled(Dirichlet(), float64([[6.0, 6.0], [6.0, 6.0]]), 5)
    assert not torch.equal(alpha[:, 0], alpha[:, 1])


def test_drawing_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    sampled(Dirichlet(), float64(BETA), 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_draw_does_not_depend_on_the_global_generator():
    first = sampled(Dirichlet(), float64(BETA), 5)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(sampled(Dirichlet(), float64(BETA), 5), first)


@pytest.mark.parametrize("shape", [(3,), (3, 4)], ids=str)
def test_samples_are_what_pytorch_draws_with_each_generator(shape) -> None:
    torch.manual_seed(0)
    beta = 1.5 + 5 * torch.rand(shape, dtype=torch.float64)
    for seed in (3, 2**62, 7, 3, 0):
        alpha = sampled(Dirichlet(), beta, seed)
        assert torch.equal(alpha, by_pytorch(Dirichlet(), beta, seed))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_nothing_is_drawn_from_numbers_that_are_none(wrong) -> None:
    with pytest.raises(ValueError, match="beta is not finite"):
        sampled(Dirichlet(), float64([2.0, wrong, 3.0]), 1)
