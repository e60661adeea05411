"""Eq. 4: alpha_k = exp(beta_k) / sum_i exp(beta_i)."""

import math

import torch

from autofedavg.core.constraints import Softmax
from toy import float64, sampled

BETA = [0.3, -1.2, 2.0]


def test_formula():
    total = sum(math.exp(b) for b in BETA)
    expected = [math.exp(b) / total for b in BETA]
    torch.testing.assert_close(Softmax().alpha(float64(BETA)), float64(expected))


def test_layer_wise_is_the_formula_in_every_column():
    beta = float64([[0.3, 1.0], [-1.2, 0.0], [2.0, -3.0]])
    alpha = Softmax().alpha(beta)
    for p in range(2):
        torch.testing.assert_close(alpha[:, p], Softmax().alpha(beta[:, p]))


def test_a_learning_step_uses_the_same_weights_as_aggregation():
    beta = float64(BETA)
    assert torch.equal(sampled(Softmax(), beta, 1), Softmax().alpha(beta))
    assert torch.equal(Softmax().mean(beta), Softmax().alpha(beta))


def test_gradient_is_alpha_times_the_gap_to_the_mean_gradient():
    beta, g = float64(BETA).requires_grad_(), float64([2.0, -1.0, 0.5])
    alpha = Softmax().alpha(beta)
    (slope,) = torch.autograd.grad((alpha * g).sum(), beta)
    alpha = alpha.detach()
    torch.testing.assert_close(slope, alpha * (g - (alpha * g).sum()))


def test_large_beta_does_not_overflow():
    assert Softmax().alpha(float64([1000.0, 0.0])).tolist() == [1.0, 0.0]
