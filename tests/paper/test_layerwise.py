"""Sec. 3.2's layer-wise variant: a layer p is w_p = sum_k alpha_{k,p} w_{k,p}."""

import pytest
import torch

from autofedavg.algorithm import update_beta
from autofedavg.core.constraints import Softmax
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import CPU, DirectFleet, bank_of, cross_entropy, float64, mlp, norm_net, rounds_of


def batch():
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (6,), generator=generator)


def mlp64():
    return mlp(torch.float64)


def norm64():
    return norm_net(torch.float64)


@pytest.mark.parametrize("network", [mlp64, norm64])
@pytest.mark.parametrize("kind", ["module", "tensor"])
def test_layer_wise_gradients_sum_to_the_network_wise_one(network, kind):
    bank, layout = bank_of(network, 3)
    P = layout.layers(kind).P
    trainer = LocalTrainer(network(), cross_entropy, Training(), CPU)
    beta = float64([0.5, -0.2, 0.1])

    def slope(beta, layers):
        how = {"gamma": Softmax().note(), "layers": layers, "rate": 1.0, "smoothing": 0.0}
        theta, _ = update_beta(trainer, bank, beta, batch(), how | {"mode": "eval"}, seed=0)
        return beta - theta

    whole = slope(beta, None)
    by_layer = slope(beta.unsqueeze(1).repeat(1, P), kind)
    assert by_layer.shape == (3, P)
    assert (by_layer - by_layer[:, :1]).abs().max() > 1e-4
    torch.testing.assert_close(by_layer.sum(dim=1), whole, rtol=0, atol=1e-12)


def test_each_layer_is_mixed_with_its_own_weights():
    bank, layout = bank_of(mlp64, 2)
    alpha = float64([[1.0, 0.0], [0.0, 1.0]])
    mixed = layout.state_dict(bank.combine(alpha, layout.layers("module")))
    first, second = (layout.state_dict(bank[site]) for site in "AB")
    assert all(torch.equal(mixed[name], first[name]) for name in ("0.weight", "0.bias"))
    assert all(torch.equal(mixed[name], second[name]) for name in ("2.weight", "2.bias"))


def test_a_layer_is_the_module_that_owns_the_tensors():
    _, layout = bank_of(norm64, 1)
    assert layout.layers("module").names == ("0", "1", "4")
    assert layout.layers("tensor").P == 8


@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_learning_gives_the_layers_weights_of_their_own(problem, constraint):
    method = AutoFedAvg(constraint=constraint, weights="layer", S=3)
    last = rounds_of(method, DirectFleet(problem), 2)[-1]
    assert last.alpha.shape == last.beta.shape == (3, 2)
    torch.testing.assert_close(last.alpha.sum(dim=0), float64([1.0, 1.0]))
    assert not torch.allclose(last.alpha[:, 0], last.alpha[:, 1])
