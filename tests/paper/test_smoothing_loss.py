"""The layer-wise smoothing loss: lambda times the mean of ||alpha_{p+1} - alpha_p||^2."""

import pytest
import torch
from pydantic import ValidationError

from autofedavg.algorithm import update_beta
from autofedavg.core.constraints import Dirichlet, Softmax, smoothing
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import CPU, DirectFleet, bank_of, cross_entropy, float64, mlp, rounds_of, toy_problem


def test_formula():
    alpha = float64([[0.2, 0.5, 0.5], [0.8, 0.5, 0.5]])
    assert smoothing(alpha).item() == pytest.approx((0.3**2 + 0.3**2 + 0) / 2)


def test_equal_layers_cost_nothing():
    assert smoothing(float64([[0.3, 0.3], [0.7, 0.7]])).item() == 0.0


def test_a_single_layer_has_no_neighbour_and_costs_nothing():
    assert smoothing(float64([[0.3], [0.7]])).item() == 0.0


@pytest.mark.parametrize("gamma", [Softmax(), Dirichlet()], ids=["softmax", "dirichlet"])
def test_it_adds_lambda_times_its_own_gradient_on_the_mean_weights(gamma):
    bank, _ = bank_of(lambda: mlp(torch.float64), 3)
    batch = (torch.ones(2, 4, dtype=torch.float64), torch.tensor([0, 2]))
    trainer = LocalTrainer(mlp(torch.float64), cross_entropy, Training(), CPU)
    beta = float64([[2.0, 5.0], [3.0, 3.0], [4.0, 2.5]])

    def theta(strength):
        how = {"gamma": gamma.note(), "layers": "module", "rate": 1.0, "mode": "eval"}
        return update_beta(trainer, bank, beta, batch, how | {"smoothing": strength}, seed=3)[0]

    known = beta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(smoothing(gamma.mean(known)), known)
    torch.testing.assert_close(theta(0.0) - theta(0.7), 0.7 * slope, rtol=0, atol=1e-14)
    assert slope.abs().max() > 1e-3


def test_network_wise_weights_have_nothing_to_smooth():
    with pytest.raises(ValidationError, match="smoothing needs weights = 'layer'"):
        AutoFedAvg(smoothing=1.0)


def test_a_strong_smoothing_gives_smoother_weights():
    def roughness(strength):
        method = AutoFedAvg(constraint="softmax", weights="layer", S=20, smoothing=strength)
        return smoothing(rounds_of(method, DirectFleet(toy_problem(3)), 2)[-1].alpha).item()

    assert roughness(100.0) < 0.2 * roughness(0.0)
