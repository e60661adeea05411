"""Eq. 2: beta minimises the sum of the clients' losses, every client counting the same."""

import pytest
import torch

from autofedavg.core.trainer import Training
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import DirectFleet, PointSite, float64, point_problem, rounds_of

HALF_WAY = Training(iterations=1, optimiser="sgd", learning_rate=0.5, momentum=0.0)


def learned(sizes):
    sites = {
        "A": PointSite((4.0, 0.0), (1.0, 1.0), sizes[0]),
        "B": PointSite((0.0, 8.0), (2.0, -1.0), sizes[1]),
        "C": PointSite((-2.0, 2.0), (0.5, 3.0), sizes[2]),
    }
    method = AutoFedAvg(constraint="softmax", S=1, beta_optimiser="sgd", beta_rate=0.25)
    (only,) = rounds_of(method, DirectFleet(point_problem((0.0, 0.0), sites), HALF_WAY), T=1)
    return only


@pytest.mark.parametrize("sizes", [(1, 1, 1), (100, 10, 1)])
def test_one_step_descends_the_unweighted_mean_of_the_clients_losses(sizes):
    w_k = float64([[2.0, 0.0], [0.0, 4.0], [-1.0, 1.0]])
    points = float64([[1.0, 1.0], [2.0, -1.0], [0.5, 3.0]])
    beta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    w = torch.softmax(beta, dim=0) @ w_k
    loss = 0.5 * (w - points).square().sum(dim=1).mean()
    (slope,) = torch.autograd.grad(loss, beta)
    torch.testing.assert_close(learned(sizes).beta, -0.25 * slope, rtol=0, atol=1e-14)
