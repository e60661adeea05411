"""From the clients' stepped beta to the next one."""

import json

import pytest
import torch

from autofedavg.core.beta_optimiser import BetaOptimiser
from toy import float64


def test_sgd_is_the_average_as_it_is():
    step = BetaOptimiser("sgd", 0.3).start()
    average = float64([1.0, 2.0])
    assert torch.equal(step(float64([5.0, 5.0]), average), average)


@pytest.mark.parametrize(("kind", "rate"), [("sgd", 0.3), ("adam", 1.0)])
def test_clients_step_by_the_rate_or_by_one(kind, rate):
    assert BetaOptimiser(kind, 0.3).client_rate == rate


def test_adam_is_torch_s_own_on_the_mean_gradient():
    gradients = [float64([0.5, -2.0]), float64([0.1, 0.3]), float64([-1.0, 0.0])]
    parameter = float64([6.0, 6.0]).requires_grad_()
    reference = torch.optim.Adam([parameter], lr=0.1, betas=(0.5, 0.999))
    step = BetaOptimiser("adam", 0.1).start()
    theta = float64([6.0, 6.0])
    for gradient in gradients:
        parameter.grad = gradient.clone()
        reference.step()
        theta = step(theta, theta - gradient)
        torch.testing.assert_close(theta, parameter.detach(), rtol=0, atol=1e-14)


def test_adam_goes_on_from_the_theta_it_is_given():
    """A floor, or a client that missed a step, may have moved theta in between."""
    step = BetaOptimiser("adam", 0.1).start()
    step(float64([6.0]), float64([5.0]))
    after = step(float64([1.0]), float64([1.0]))
    assert abs(after.item() - 1.0) < 0.2


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_client_rebuilds_it_from_plain_values(kind):
    optimiser = BetaOptimiser(kind, 0.3)
    again = BetaOptimiser(**json.loads(json.dumps(optimiser.note())))
    theta, average = float64([6.0, 2.0]), float64([5.0, 2.5])
    assert torch.equal(again.start()(theta, average), optimiser.start()(theta, average))
    assert again.client_rate == optimiser.client_rate


def test_every_start_is_fresh():
    optimiser = BetaOptimiser("adam", 0.1)
    first, second = optimiser.start(), optimiser.start()
    one = first(float64([6.0]), float64([5.0]))
    first(one, one - 1.0)
    assert torch.equal(second(float64([6.0]), float64([5.0])), one)


def test_a_step_never_changes_its_arguments():
    theta, average = float64([6.0]), float64([5.0])
    BetaOptimiser("adam", 0.1).start()(theta, average)
    assert (theta.item(), average.item()) == (6.0, 5.0)
