"""Eq. 1: FedAvg, w = sum_k alpha_k w_k with alpha_k = n_k/n, and its even variant."""

import pytest
import torch

from autofedavg.core.trainer import Training
from autofedavg.methods.fedavg import FedAvg
from toy import DirectFleet, PointSite, float64, point_problem, rounds_of

SITES = {
    "A": PointSite((4.0, 0.0), (0.0, 0.0), n=6),
    "B": PointSite((0.0, 8.0), (0.0, 0.0), n=3),
    "C": PointSite((-2.0, 2.0), (0.0, 0.0), n=1),
}
HALF_WAY = Training(iterations=1, optimiser="sgd", learning_rate=0.5, momentum=0.0)

# One step of size 1/2 takes each client half the way to its point, so from w^0 = 0:
#   w_A = (2, 0), w_B = (0, 4), w_C = (-1, 1)
# sizes 6, 3, 1:  w^1 = (1.2 + 0 - 0.1, 0 + 1.2 + 0.1) = (1.1, 1.3)
# then            w_A = (2.55, 0.65), w_B = (0.55, 4.65), w_C = (-0.45, 1.65)
#                 w^2 = (1.53 + 0.165 - 0.045, 0.39 + 1.395 + 0.165) = (1.65, 1.95)
BY_HAND = {
    "size": ([0.6, 0.3, 0.1], [[1.1, 1.3], [1.65, 1.95]]),
    "even": ([1 / 3, 1 / 3, 1 / 3], [[1 / 3, 5 / 3], [0.5, 2.5]]),
}


@pytest.mark.parametrize("weights", ["size", "even"])
def test_fedavg_is_the_weighted_average_worked_out_by_hand(weights):
    alpha, w = BY_HAND[weights]
    transport = DirectFleet(point_problem((0.0, 0.0), SITES), HALF_WAY)
    rounds = rounds_of(FedAvg(weights=weights), transport, T=2)
    assert [r.t for r in rounds] == [1, 2]
    for found, expected in zip(rounds, w, strict=True):
        torch.testing.assert_close(found.w.values, float64(expected), rtol=0, atol=1e-14)
        torch.testing.assert_close(found.alpha, float64(alpha), rtol=0, atol=1e-15)
        assert found.beta is None
        assert not found.learned


def test_clients_in_the_second_round_start_from_the_average():
    transport = DirectFleet(point_problem((0.0, 0.0), SITES), HALF_WAY)
    _, second = rounds_of(FedAvg(), transport, T=2)
    expected = float64([[2.55, 0.65], [0.55, 4.65], [-0.45, 1.65]])
    torch.testing.assert_close(second.w_k.values, expected, rtol=0, atol=1e-14)


def test_n_k_counts_training_cases_only():
    transport = DirectFleet(point_problem((0.0, 0.0), SITES), HALF_WAY)
    (only,) = rounds_of(FedAvg(), transport, T=1)
    assert only.alpha.tolist() == [0.6, 0.3, 0.1]
